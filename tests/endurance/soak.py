"""soak.py [MINUTES] [--seed N]: the device plugin under everything at once, for minutes or hours.

The plugin is a process with its real times on a laid-out node, mode both, against doubles of kubelet and API server. A
burst is a run of random events, while a client asks for Allocate. After each burst kubelet, slices, CDI specs,
claims' records and sockets have to match node and config within BOUND seconds; a violation ends the run with 1. After a
quarter of the time memory, descriptors and threads may rise by at most LIMITS.
"""

import contextlib
import os
import pathlib
import random
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter

CHECKOUT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(CHECKOUT / "device_plugin"), str(CHECKOUT / "tests/device_plugin")]
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"

import grpc  # noqa: E402
from api_server_double import ApiServer  # noqa: E402
from harness import Node, Process, document, entry  # noqa: E402
from kubelet_double import Kubelet  # noqa: E402
from rdma_device_plugin import cdi, claimspecs  # noqa: E402
from rdma_device_plugin.devices import DRIVER  # noqa: E402

RAILS = {f"rdma/rail{number}": f"mlx5_{number}" for number in range(6)}
OVER_DRA, SHARES = ("mlx5_6", "mlx5_7"), 4
BOUND = 20.0
# Allowed rise from the first quarter to the end: MiB, descriptors, threads.
LIMITS = {"RSS (MiB)": 8.0, "descriptors": 8, "threads": 8}


class Bed:
    """The plugin and its surroundings below `base`, and their expected state."""

    def __init__(self, base: pathlib.Path) -> None:
        self.node = Node(base / "node", "h100-8x-cx7-ib")
        self.up = dict.fromkeys([*RAILS.values(), *OVER_DRA], True)
        self.plugged = dict(self.up)
        self.counts = dict.fromkeys(RAILS, 100)
        self.claims: dict = {}
        self.happened: Counter = Counter()
        self.disk = base / "disk"
        self.disk.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "soak", self.disk], check=True)
        self.api = ApiServer(base).start()
        self.kubelet = Kubelet(base, started=self.api.wipe).start()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.page = f"http://127.0.0.1:{probe.getsockname()[1]}"
        flags = {
            "cdi-dir": self.disk / "cdi",
            "plugins-dir": self.disk / "plugins",
            "metrics-address": self.page.removeprefix("http://"),
            "mode": "both",
            "kubeconfig": self.api.kubeconfig,
            "node-name": self.api.node,
        }
        words = [str(word) for name, value in flags.items() for word in (f"-{name}", value)]
        plugin = Process(base, self.document(), self.node.root, "-use-cdi", *words)
        self.process, self.log, self.config = plugin.process, plugin.log, base / "config.json"

    def close(self) -> None:
        self.process.kill()
        self.kubelet.stop()
        self.api.stop()
        subprocess.run(["umount", "--lazy", self.disk], check=False)

    def document(self) -> bytes:
        pools = [
            entry(name[5:], count, extraSelectors={"rdmaDevices": [RAILS[name]]}) for name, count in self.counts.items()
        ]
        return document(
            *pools, entry("fabric", SHARES, extraSelectors={"rdmaDevices": OVER_DRA}, api="dra"), interval=1
        )

    def flap(self, chance):
        hca = chance.choice([hca for hca, there in self.plugged.items() if there] or [None])
        if hca:
            self.up[hca] = not self.up[hca]
            self.node.port(hca, "4: ACTIVE" if self.up[hca] else "1: DOWN")

    def swap(self, chance):
        hca = chance.choice(list(self.plugged))
        self.plugged[hca] = not self.plugged[hca]
        (self.node.plug if self.plugged[hca] else self.node.unplug)(hca)

    def restart_kubelet(self, chance):
        self.kubelet.stop(unlink=chance.random() < 0.7)
        if chance.random() < 0.5:
            self.kubelet.refuse = "no room"
            self.kubelet.start()
            time.sleep(chance.uniform(0.1, 2))
            self.kubelet.stop()
            self.kubelet.refuse = ""
        self.kubelet.log.clear()
        self.kubelet.start()

    def configure(self, chance):
        how = chance.choice(("rename", "in place", "invalid", "SIGHUP"))
        if how == "SIGHUP":
            os.kill(self.process.pid, signal.SIGHUP)
            return
        if how == "invalid":
            self.config.write_bytes(b'{"configList": [{')
            time.sleep(chance.uniform(0.1, 1))
        self.counts = {
            name: chance.choice((90, 100, 110)) for name in chance.sample(list(RAILS), chance.choice((5, 6)))
        }
        target = self.config.with_suffix(".new") if how == "rename" else self.config
        target.write_bytes(self.document())
        os.replace(target, self.config)

    def fill_disk(self, chance):
        filler = self.disk / "filler"
        with contextlib.suppress(OSError):
            filler.write_bytes(bytes(1 << 20))
        time.sleep(chance.uniform(0.2, 2))
        filler.unlink()

    def lose_api(self, chance):
        how = chance.choice(("away", "token", "too old"))
        if how == "away":
            self.api.stop()
            time.sleep(chance.uniform(0.1, 2))
        {"away": self.api.start, "token": self.api.rotate, "too old": self.api.expire}[how]()
        self.api.calls.clear()

    def claim(self, chance):
        """Prepare one more claim, or end one."""
        if self.claims and (len(self.claims) >= 8 or chance.random() < 0.5):
            self.unprepare(chance.choice(list(self.claims)))
        elif published := self.api.devices():
            uid = f"uid-{self.happened['claim']}"
            device = chance.choice(published)
            self.claims[uid] = key = self.api.allocate(f"claim-{uid}", {"rail": device}, uid=uid)
            if not (answer := self.ask(lambda driver: driver.prepare(key, timeout=10)[uid])):
                self.unprepare(uid)
            elif [one.device_name for one in answer.devices] != [device]:
                raise AssertionError(f"claim {uid}: wanted device {device}, prepared {answer}")

    def unprepare(self, uid):
        key = self.claims[uid]
        if self.ask(lambda driver: driver.unprepare(key, timeout=10)[uid]) is None:
            raise AssertionError(f"claim {uid}: not unprepared in {BOUND:.0f} s")
        del self.claims[uid], self.api.claims[key[:2]]

    def ask(self, call):
        """The answer without an error, retried like the kubelet; None after BOUND or if its HCA is gone."""
        deadline = time.monotonic() + BOUND
        while time.monotonic() < deadline:
            driver = self.kubelet.drivers.get(DRIVER)
            with contextlib.suppress(grpc.RpcError, ValueError):  # ValueError: the channel was closed before the call
                answer = call(driver) if driver else None
                if answer is not None and not answer.error:
                    return answer
                if answer is not None and "is not on this node" in answer.error:
                    return None
            time.sleep(0.1)
        return None

    def allocate(self, chance):
        """The right HCA, or an error within its time."""
        resource = chance.choice(list(RAILS))
        try:
            answer = self.kubelet.allocate(resource, ["7"]).container_responses[0]
        except (KeyError, ValueError, grpc.RpcError) as error:
            if isinstance(error, grpc.RpcError) and error.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
                raise AssertionError(f"Allocate {resource}: no answer") from None
            return
        named = {one.name.rpartition(":")[2] for one in answer.cdi_devices}
        number = RAILS[resource].partition("_")[2]
        if not named <= {RAILS[resource]} or any(f"uverbs{number}" not in one.host_path for one in answer.devices
                                                 if "uverbs" in one.host_path):  # fmt: skip
            raise AssertionError(f"Allocate {resource}: wanted {RAILS[resource]}, got {answer}")

    def differences(self) -> list[str]:
        """Differences from the node and the config."""
        ready = {hca for hca in self.up if self.up[hca] and self.plugged[hca]}
        pairs = {
            f"{name} at the kubelet": (self.kubelet.allocatable(name), self.counts.get(name, 0) * (hca in ready))
            for name, hca in RAILS.items()
        }
        slices = [f"{hca.replace('_', '-')}-u{unit:02d}" for hca in OVER_DRA if hca in ready for unit in range(SHARES)]
        pairs["ResourceSlices"] = (self.api.devices() or [], sorted(slices))
        known, unknown = claimspecs.load(str(self.disk / "cdi"))
        pairs["claims on disk"] = (sorted([*known, *unknown]), sorted(self.claims))
        specs = set(os.listdir(self.disk / "cdi")) if (self.disk / "cdi").exists() else set()
        of_claims = [claimspecs.file(uid) for uid in self.claims]
        wanted = {*of_claims, *(f"{name.removesuffix('.json')}_rail.metadata" for name in of_claims)}
        wanted |= {cdi.file(name[5:]) for name in self.counts if self.plugged[RAILS[name]]}
        optional = {cdi.file(name[5:]) for name in self.counts}  # of an HCA that is gone, for running pods
        pairs["CDI specs"] = (sorted(specs - (optional - wanted)), sorted(wanted))
        sockets = sorted(name for name in os.listdir(self.kubelet.registry) if not name.startswith("."))
        pairs["sockets"] = (
            sockets,
            sorted(f"{name}.sock" for name in [*(n[5:] for n in self.counts), f"{DRIVER}-reg"]),
        )
        found = [f"{what}: wanted {wanted}, seen {seen}" for what, (seen, wanted) in pairs.items() if seen != wanted]
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{self.page}/readyz", timeout=BOUND):
            return found
        return [*found, "/readyz: wanted 200"]

    def settle(self, bound: float = BOUND) -> float:
        """Seconds until everything is right."""
        begun = time.monotonic()
        while found := self.differences():
            if self.process.poll() is not None:
                raise AssertionError(f"the plugin has ended with {self.process.returncode}")
            if time.monotonic() - begun > bound:
                raise AssertionError("; ".join(found))
            time.sleep(0.02)
        return time.monotonic() - begun

    def held(self) -> tuple[float, int, int]:
        """RSS in MiB, descriptors and threads of the plugin."""
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        memory, threads = (int(status.partition(f"{key}:")[2].split()[0]) for key in ("VmRSS", "Threads"))
        return memory / 1024, len(os.listdir(f"/proc/{self.process.pid}/fd")), threads


def allocate_all_the_while(bed: Bed, chance: random.Random, over: threading.Event, failures: list) -> None:
    try:
        while not over.wait(chance.uniform(0.02, 0.1)):
            bed.allocate(chance)
    except Exception as error:  # noqa: BLE001 - the run ends with it
        failures.append(error)


def go(bed: Bed, seconds: float, seed: str) -> list[str]:
    """Bursts until the time is up; returns what grew too much."""
    chance = random.Random(seed)
    events = [bed.flap, bed.swap, bed.restart_kubelet, bed.configure, bed.fill_disk, bed.lose_api, *[bed.claim] * 4]
    print(f"  ready after {bed.settle(60):.1f} s; seed {seed}", flush=True)
    over, failures, begun, held, took = threading.Event(), [], time.monotonic(), [], []
    threading.Thread(
        target=allocate_all_the_while, args=(bed, random.Random(seed), over, failures), daemon=True
    ).start()
    while (now := time.monotonic() - begun) < seconds:
        for event in chance.choices(events, k=chance.randint(5, 25)):
            event(chance)
            bed.happened[event.__name__] += 1
            time.sleep(chance.uniform(0.0, 0.5))
        took.append(bed.settle())
        if failures:
            raise failures[0]
        held.append((now, *bed.held()))
        print(f"{now:6.0f} s: {bed.happened.total()} events, RSS {held[-1][1]:.1f} MiB", flush=True)
    over.set()
    for uid in list(bed.claims):
        bed.unprepare(uid)
    bed.settle()
    bed.process.send_signal(signal.SIGTERM)
    if bed.process.wait(10) != 0:
        raise AssertionError(f"SIGTERM: wanted exit code 0, got {bed.process.returncode}")
    print(f"  {dict(bed.happened)}; right again after {statistics.median(took):.1f} s (median)")
    warm = next(row for row in held if row[0] >= seconds / 4)
    rises = {name: held[-1][column] - warm[column] for column, name in enumerate(LIMITS, 1)}
    print("  from the first quarter on: " + ", ".join(f"{name} {rise:+.1f}" for name, rise in rises.items()))
    return [f"{name} rose by {rise:.1f}, at most {LIMITS[name]}" for name, rise in rises.items() if rise > LIMITS[name]]


def main(words: list[str]) -> int:
    seed = words[words.index("--seed") + 1] if "--seed" in words else str(time.time_ns())
    minutes = float(words[0]) if words and not words[0].startswith("-") else 10.0
    base = pathlib.Path(tempfile.mkdtemp(prefix="dp", dir="/dev/shm"))
    bed = Bed(base)
    try:
        problems = go(bed, minutes * 60, seed)
    except AssertionError as error:
        problems = [str(error), *bed.log.read_text().splitlines()[-15:]]
    finally:
        bed.close()
        shutil.rmtree(base, ignore_errors=True)
    print("\n".join(["FAILED", *problems]) if problems else f"soak: {minutes:g} minutes held")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
