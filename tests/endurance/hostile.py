"""Whole playbooks against a node whose every string is hostile; `tests/unit/playbooks/test_trust.py` has the actions.

    make unit ARGS=tests/endurance/hostile.py      all strings by each kind, and of each playbook's own strings STRINGS

node2's Python is ours: it runs each module and changes the answer. Afterwards controller, node1 and cluster are as they
were before, or as after the same playbook with an honest node2, except for MAY_DIFFER.
"""

import collections
import fnmatch
import json
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
from typing import NamedTuple

import pytest
from ansible_collections.gpufabric.rdma.tests.tools import node_python, running
from ansible_collections.gpufabric.rdma.tests.unit.playbooks import test_trust
from ansible_collections.gpufabric.rdma.tests.unit.playbooks.test_cluster import Cluster

KINDS = {**test_trust.KINDS, "large": "LARGE"}
# Extra variables of a run.
PLAYBOOKS = {
    "discover": [],
    "host": [],
    "upgrade_driver": ["--check"],
    "site": ["--check"],
    "cluster": [],
    "verify": ["-e", "verification_results=@/results.json"],
    "drift": ["--check"],
    "render": ["-e", "cluster_objects_folder=@/git"],
    "capture": ["-e", "capture_dir=@/captures"],
    "matrix": ["--check"],
    "nccl_tests": ["-e", "nccl_tests_file=@/job.yml"],
    "upgrade_k3s": ["--check"],
    "reset": ["--check", "-e", "k3s_reset_allowed=true"],
}
# Each is also about node2, or belongs to this run.
MAY_DIFFER = ("*.html", "results.json", "drift/*", "captures/node2.yml", "home/.ansible/*", "run/*", "cluster.json*")
# All nodes are read again once the host layer of one has changed.
AGAIN = "gpufabric.rdma.discovery : Gather facts of the node"
SECRET = "the operator's private key"
# Number of strings of a playbook that are replaced one at a time, besides all at once.
STRINGS = int(os.environ.get("STRINGS", "40"))

# The Python of node2. The number of the call and its keys identify a string.
NODE = """#!{python} -ISE
import json, subprocess, sys
done = subprocess.run([{node!r}, *sys.argv[1:]], stdout=subprocess.PIPE)
told = json.load(open({folder!r} + "/run/told.json"))
with open({folder!r} + "/run/strings", "a+") as log:
    log.seek(0)
    number = str(sum(line == "call\\n" for line in log) + 1)

    def walk(value, path):
        if isinstance(value, dict):
            return {{key: walk(item, path + "." + key) for key, item in value.items()}}
        if isinstance(value, list):
            return [walk(item, path + "." + str(at)) for at, item in enumerate(value)]
        if not isinstance(value, str) or path.startswith(".invocation"):
            return value
        log.write(number + path + "\\n")
        return told["text"] if told["text"] and told["only"] in ("", number + path) else value

    text = done.stdout.decode()
    try:
        answer = walk(json.loads(text), "")
    except ValueError:
        answer = None
    log.write("call\\n")
if answer is not None and told["keys"]:
    answer.setdefault("ansible_facts", {{}}).update(told["keys"]["ansible_facts"])
    answer = {{**told["keys"], **answer}}
sys.stdout.write(text if answer is None else json.dumps(answer))
sys.exit(done.returncode)
"""


class Outcome(NamedTuple):
    """controller: {path: content} of all but node2's tree. objects: of the API server, except node2's."""

    controller: dict
    theirs: dict
    objects: dict
    record: dict
    output: str


class Bed(Cluster):
    """A converged cluster of node1, the server, and node2; a copy of it is laid out for each run."""

    def __init__(self, folder: pathlib.Path):
        super().__init__(folder)
        code, output = self.play("-i", "hosts.json", "gpufabric.rdma.host", "gpufabric.rdma.cluster")
        assert code == 0, output
        python = folder / "node2-python"
        python.write_text(NODE.format(python=sys.executable, node=node_python.path(), folder=str(folder)))
        python.chmod(0o755)
        self.hosts["node2"]["ansible_python_interpreter"] = str(python)
        (folder / "home/.ssh").mkdir(parents=True)
        (folder / "home/notes").write_text(SECRET)
        (folder / "home/.ssh/id_ed25519").write_text(SECRET)
        self.kept = folder.with_name(f"{folder.name}.kept")
        subprocess.run(["cp", "-a", folder, self.kept], check=True)
        self.before, self.honest, self.done = self.seen({}, ""), {}, set()

    def seen(self, record: dict, output: str) -> Outcome:
        held = {
            str(path.relative_to(self.folder)): path.read_bytes() for path in self.folder.rglob("*") if path.is_file()
        }
        theirs = {path: data for path, data in held.items() if path.startswith("node2/")}
        own = {
            path: data
            for path, data in held.items()
            if path not in theirs and not any(fnmatch.fnmatch(path, pattern) for pattern in MAY_DIFFER)
        }
        objects = {}
        for name, item in self.cluster.objects.items():
            if "node2" not in name:
                of_server = ("resourceVersion", "managedFields", "generation")
                meta = {key: value for key, value in item["metadata"].items() if key not in of_server}
                objects[name] = {**item, "metadata": meta}
        return Outcome(own, theirs, objects, record, output)

    def run(self, playbook: str, text: str = "", only: str = "", keys: dict | None = None) -> Outcome:
        for path in self.folder.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        subprocess.run(["cp", "-a", f"{self.kept}/.", self.folder], check=True)
        (self.folder / "run").mkdir()
        told = json.dumps({"text": text, "only": only, "keys": keys or {}}).replace("@", str(self.folder))
        (self.folder / "run/told.json").write_text(told)
        words = [word.replace("@", str(self.folder)) for word in PLAYBOOKS[playbook]]
        own = {**running.environment(self.folder / "run"), "HOME": str(self.folder / "home")}
        _code, output = self.play("-i", "hosts.json", f"gpufabric.rdma.{playbook}", *words, **own)
        return self.seen(running.written(self.folder / "run").get("node1", {}), output)

    def honestly(self, playbook: str) -> Outcome:
        if playbook not in self.honest:
            self.honest[playbook] = self.run(playbook)
        return self.honest[playbook]

    def strings(self) -> list[str]:
        """node2's answers in the last run; the first item of a list."""
        lines = (self.folder / "run/strings").read_text().splitlines()
        return [line for line in dict.fromkeys(lines) if line != "call" and not re.search(r"\.[1-9]\d*(\.|$)", line)]

    def wrong(self, playbook: str, kind: str, only: str = "") -> list[str]:
        """Differences from both the state before and that with an honest node2."""
        before, honest = self.before, self.honestly(playbook)
        text = KINDS.get(kind, "").replace("LARGE", "x" * (10_000_000 if only else 10_000))
        seen = self.run(playbook, text, only, test_trust.MARKS if kind == "keys" else None)
        found = []
        for part in ("controller", "objects"):
            was, may, now = getattr(before, part), getattr(honest, part), getattr(seen, part)
            found += [f"{part}: {key}" for key in now if now[key] not in (was.get(key), may.get(key))]
            found += [f"{part}: {key} is gone" for key in was if key not in now and key in may]
        # If the plan has a finding, drift compares all nodes, which changes none.
        for key in ("changed",) if playbook == "drift" else ("calls", "changed"):
            more = collections.Counter(seen.record.get(key, ())) - collections.Counter(honest.record.get(key, ()))
            found += [f"node1 {key}: {task}" for task in more if task != AGAIN]
        found += [
            f"node2 holds the operator's: {path}" for path, data in seen.theirs.items() if SECRET.encode() in data
        ]
        return found + [word for word in ("Traceback", "a bug in the collection") if word in seen.output]


@pytest.fixture(scope="module")
def bed(tmp_path_factory):
    return Bed(tmp_path_factory.mktemp("bed"))


@pytest.mark.parametrize("kind", [*KINDS, "keys"])
@pytest.mark.parametrize("playbook", PLAYBOOKS)
def test_all_strings_of_a_node_at_once(bed, playbook, kind):
    assert bed.wrong(playbook, kind) == []


@pytest.mark.parametrize("playbook", PLAYBOOKS)
def test_one_string_of_a_node_at_a_time(bed, playbook):
    bed.run(playbook)
    strings = bed.strings()
    drawn = random.Random(playbook).sample(strings, min(STRINGS, len(strings)))
    kinds = random.Random(playbook).choices([*KINDS], k=len(drawn))
    found = {only: bed.wrong(playbook, kind, only) for only, kind in zip(drawn, kinds)}
    print(f"{playbook}: {len(drawn)} of {len(strings)} strings")
    assert {only: wrong for only, wrong in found.items() if wrong} == {}
