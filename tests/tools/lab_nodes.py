"""The lab's nodes and playbook runs on them, for tests. LAB_DIR and its companions in the environment say which lab."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import json
import os
import pathlib
import subprocess
import tempfile

from ansible_collections.gpufabric.rdma.tests.tools import recording

CHECKOUT = pathlib.Path(__file__).resolve().parents[2]


@dataclasses.dataclass
class Run:
    """One ansible-playbook run: its exit code and, host by host, the results of its tasks."""

    code: int
    said: str  # the reports for people, which come before the machine's part
    text: str
    results: dict
    record: dict  # what tests/tools/callback_plugins/run_record.py wrote
    seconds: list  # [(seconds, task)] in the order in which they ran

    def changes(self, host):
        """(object, action) of everything the modules changed, or would change in check mode."""
        return {
            (change["object"], change["action"])
            for result in self.results[host]
            for change in result.get("changes") or ()
        }

    def checks(self, host, status):
        """The named checks of the verification role with this status."""
        facts = [result["ansible_facts"] for result in self.results[host] if "ansible_facts" in result]
        checks = next(fact["rdma_checks"] for fact in facts if "rdma_checks" in fact)
        return [check for check in checks if check["status"] == status]

    def longest(self, count):
        """[(seconds, task)] of so many tasks, the longest first; a task that ran several times is one."""
        total = collections.Counter()
        for seconds, task in self.seconds:
            total[task] += seconds
        return [(seconds, task) for task, seconds in total.most_common(count)]

    def messages(self, host):
        """What was printed to the user about this host."""
        said = [result.get("msg", "") for result in self.results[host]]
        return "\n".join("\n".join(map(str, words)) if isinstance(words, list) else str(words) for words in said)


class Lab:
    inventory = "lab"  # folder of inventory/

    def try_labctl(self, *words, stdin=None):
        command = [CHECKOUT / "lab" / "labctl", *words]
        return subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)

    def labctl(self, *words):
        done = self.try_labctl(*words)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def node(self, name, script):
        return self.labctl("ssh", name, script).strip()

    def play(self, playbook, *arguments):
        command = [
            "ansible-playbook",
            "-i",
            CHECKOUT / "inventory" / self.inventory,
            CHECKOUT / "playbooks" / playbook,
            *arguments,
        ]
        # Machine-readable, so that no test reads a layout made for people.
        with tempfile.TemporaryDirectory() as records:
            env = {
                **os.environ,
                "ANSIBLE_STDOUT_CALLBACK": "ansible.posix.json",
                **recording.environment(records),
            }
            done = subprocess.run(command, env=env, cwd=CHECKOUT, capture_output=True, text=True, check=False)
            record = recording.written(records)
        text = done.stdout + done.stderr
        start = done.stdout.find("{\n")
        assert start >= 0, text
        results, started = {}, []
        for play in json.loads(done.stdout[start:])["plays"]:
            for task in play["tasks"]:
                when = datetime.datetime.fromisoformat(task["task"]["duration"]["start"])
                started.append((when, task["task"]["name"]))
                for host, result in task["hosts"].items():
                    results.setdefault(host, []).append(result)
        # Until the next task starts, so that the controller's own work counts.
        ends = [when for when, _task in started[1:]] + [datetime.datetime.now(datetime.timezone.utc)]
        seconds = [((end - start).total_seconds(), task) for (start, task), end in zip(started, ends)]
        return Run(done.returncode, done.stdout[:start], text, results, record, seconds)
