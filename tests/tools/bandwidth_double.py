"""A double of ib_write_bw for tests: its two ends meet on a TCP port of this machine and print perftest's output.

It is usr/bin/ib_write_bw in a node's tree. BANDWIDTH_DOUBLE names a JSON file: {"gbit": figure for all tests,
"rails": {"HCA of the client": figure}, "class": a word that it must be given,
"log": file that gets one line a start and an end}.
"""

import json
import os
import pathlib
import socket
import sys
import time

TABLE = """
 #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]
 65536      {writes}            {rate:.2f}               {rate:.2f}                 0.1
"""


def main(words):
    planted = json.loads(pathlib.Path(os.environ["BANDWIDTH_DOUBLE"]).read_text())
    port = int(words[words.index("-p") + 1])
    hca = words[words.index("-d") + 1]
    if planted.get("class") not in (None, *words):
        return 2
    client = not words[-2].startswith("-D")
    if not client:
        with socket.create_server(("127.0.0.1", port), reuse_port=True) as server:
            server.accept()[0].recv(1)
        return 0
    try:
        peer = socket.create_connection(("127.0.0.1", port))
    except ConnectionRefusedError:
        print(f" Couldn't connect to {words[-1]}:{port}")
        return 1
    node = pathlib.Path(sys.argv[0]).parents[2].name
    log(planted, f"{time.monotonic()} begin {node} {hca} {port}")
    time.sleep(0.1)
    gbit = planted.get("rails", {}).get(f"{node}/{hca}", planted["gbit"])
    log(planted, f"{time.monotonic()} end {node} {hca} {port}")
    peer.close()
    print(TABLE.format(writes=1000, rate=gbit * 1e9 / 8 / 2**20))
    return 0


def install(root):
    """Installs it as the perftest of a laid-out node; its path."""
    program = root / "usr/bin/ib_write_bw"
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(f"#!{sys.executable} -ES\n" + pathlib.Path(__file__).read_text())
    program.chmod(0o755)
    return program


def log(planted, line):
    if planted.get("log"):
        with open(planted["log"], "a", encoding="utf-8") as stream:
            stream.write(f"{line}\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
