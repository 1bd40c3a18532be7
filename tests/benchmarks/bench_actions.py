"""What handles all nodes at once, at 64 and at 1,000 nodes: tasks that run once, and tasks of a node that read others.

    make scale-actions [ARGS='--nodes 64 1000 --only drift --profile']

Two laid-out nodes with the cluster layer (a double of kubectl) are set up, verified, compared and measured (a double of
ib_write_bw) once; Ansible's own store of facts and registered results is kept. Each synthetic node is one of them with
a name and addresses of its own.
A row is one task as Ansible's worker runs it: variables, condition, arguments, action, and the pickled answer.

    once         the task runs once for all nodes: seconds, goal 10
    a node       a task of every node: milliseconds for one of them. It should not grow, since it is done as often as
                 there are nodes

Time is the processor's, so that what else runs on the machine counts little.

exponent: of the growth from the first number of nodes to the last; 1 is linear.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import math
import pathlib
import pickle
import pstats
import re
import shutil
import sys
import tempfile
import time

CHECKOUT = pathlib.Path(__file__).resolve().parents[2]
CALLBACKS = CHECKOUT / "tests/tools/callback_plugins"
RECORDED, BUNDLE = CHECKOUT / "build/scale/recorded.json", CHECKOUT / "build/scale/bundle"
GOAL_SECONDS, GOAL_EXPONENT = 10, 1.15
PLAYBOOKS = CHECKOUT / "playbooks"

PAGE = {
    "report_file": "{{ scratch }}/page.html",
    "__report_judged": "__verification_judged",
    "__report_variable": "__verification_node",
}
NCCL = {"nccl_tests_image": f"example.test/nccl@sha256:{'0' * 64}"}
# Rounds of one call of the bandwidth matrix. Two rails with 16 peers make as many tests as eight rails with four.
ROUNDS = {"__matrix_numbers": list(range(7))}
MEASURE = {"matrix_peers": 16, "matrix_pods": False, "matrix_seconds": 1, "matrix_round_seconds": 8}
# As discovery passes it to the cluster layer's roles: what was read of the node.
GIVEN = {"__discovery_given": "{{ __discovery_read }}"}
# (role and file, or playbook; task; once for all or for each node; what to run it with)
ROWS = (
    ("discovery/main", "Set whether all nodes could be read", "once", {}),
    ("discovery/main", "Run the preflight of the cluster layer", "a node", {}),
    ("discovery/cluster", "Initialize findings", "once", {}),
    ("discovery/cluster", "Run the preflight of each cluster role", "a node", {}),
    ("discovery/preflight", "Validate variables against the node", "a node", {}),
    ("discovery/preflight", "Fail with all findings, or print the plan", "once", {}),
    ("node_firewall/read", "Plan who asks whom, and the rules", "once", {}),
    ("node_firewall/probe", "Check the answers", "once", {}),
    ("k3s/preflight", "Collect the node's state and variables", "a node", GIVEN),
    ("k3s/preflight", "Validate variables and plan the role of each node", "once", {"__discovery_role": "k3s"}),
    ("k3s/preflight", "Record the node's role and plan", "a node", {}),
    ("networks/preflight", "Collect the node's networks", "a node", GIVEN),
    ("networks/preflight", "Validate variables and plan the networks", "once", {"__discovery_role": "networks"}),
    ("cluster.yml", "Fail with all findings before the first change", "once", {}),
    ("verification/fabric", "Plan the pairs of nodes", "once", {}),
    ("verification/fabric", "Start the servers", "a node", {}),
    ("verification/cluster", "Check the node's CNI configuration", "a node", {}),
    ("verification/cluster", "Collect the cluster's state", "once", {}),
    ("verification/cluster", "Plan the test pods", "once", {}),
    ("verification/cluster", "Collect the pods' results", "once", {}),
    ("verification/report", "Evaluate checks", "once", {}),
    ("verification/report", "Set the checks fact", "a node", {}),
    ("verification/report", "Write the results", "once", {"verification_results": "{{ scratch }}/results.json"}),
    ("verification/report", "Report, and fail if a check failed", "once", {}),
    ("report/page", "Write the page", "once", PAGE),
    ("drift/read", "Close the drift records of nodes with findings", "once", {}),
    ("discover.yml", "Print the tables", "once", {}),
    ("export_policy.yml", "Render the policy", "once", {}),
    ("matrix/plan", "Plan the rounds", "once", {}),
    ("matrix/call", "Plan each node's part", "once", ROUNDS),
    ("matrix/call", "Start the rounds on the node", "a node", ROUNDS),
    ("matrix/call", "Report progress", "once", ROUNDS),
    ("matrix/report", "Compare and print results", "once", {}),
    ("matrix/report", "Set the matrix fact", "once", {}),
    ("nccl_tests/main", "Render the manifest", "once", NCCL),
)


def record() -> dict:
    """{host: {facts, registered}} of the two nodes after host, cluster, verify and drift."""
    from ansible_collections.gpufabric.rdma.tests.tools import bandwidth_double
    from ansible_collections.gpufabric.rdma.tests.unit.playbooks import test_drift_cluster

    found: dict = {}
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        bed = test_drift_cluster.Cluster(folder)
        known = folder / "known.json"
        bed.environment.update(
            ANSIBLE_CALLBACK_PLUGINS=str(CALLBACKS),
            ANSIBLE_CALLBACKS_ENABLED="host_variables",
            HOST_VARIABLES=str(known),
        )
        for number, (name, root) in enumerate(bed.nodes.items(), 1):
            # One machine plays both nodes, so each needs ports of its own.
            bed.inventory["gpu_nodes"]["hosts"][name]["matrix_port"] = 18800 + 50 * number
            bandwidth_double.install(root)
        planted = folder / "planted.json"
        planted.write_text(json.dumps({"gbit": 10}))
        bed.environment["BANDWIDTH_DOUBLE"] = str(planted)
        # verify ends with failed checks here, since nothing boots: what it found is what counts.
        for playbooks in (("host", "cluster", "verify"), ("drift",), ("discover", "export_policy"), ("matrix",)):
            words = [f"gpufabric.rdma.{one}" for one in playbooks]
            _code, output = bed.command("ansible-playbook", "-i", "hosts.json", *words, "-e", json.dumps(MEASURE))
            if not known.exists():
                sys.exit(f"{' '.join(playbooks)} on two laid-out nodes: wanted: results, seen:\n{output[-3000:]}")
            for host, values in json.loads(known.read_text()).items():
                kept = found.setdefault(host, {"facts": {}, "registered": {}})
                kept["facts"].update(values["facts"])
                # discover.yml reads less of a node than the run before it, under the same name.
                kept["registered"] = {**values["registered"], **kept["registered"]}
            known.unlink()
        shutil.copytree(folder / "bundle", BUNDLE, dirs_exist_ok=True)
    return found


def synthetic(recorded: dict, count: int, filtering: bool) -> dict:
    """The first node as it is; all further ones are the second, each with a name and addresses of its own."""
    first, second = recorded
    for host in recorded.values():
        # A tree of files cannot say whether it filters.
        firewall = host["registered"]["__node_firewall_node"]["firewall"]
        firewall.update(filters=filtering, recorded=[])
    known = recorded[second]["registered"]
    # What a task that runs once registers is one object, which all nodes have.
    shared = {name: value for name, value in known.items() if recorded[first]["registered"].get(name) == value}
    own = {name: value for name, value in known.items() if name not in shared}
    text = json.dumps({"facts": recorded[second]["facts"], "registered": own})
    netdevs = known["__networks_node"]["netdevs"].values()
    places = sorted({address.split("/")[0] for netdev in netdevs for address in netdev["addresses"] if "." in address})
    places.append(known["__k3s_node"]["variables"]["node_ip"])
    wanted = re.compile(rf"\b(?:(?P<name>{second})|(?P<address>{'|'.join(map(re.escape, places))})(?P<prefix>/\d+)?)\b")
    nodes = {first: recorded[first]}
    for number in range(1, count):
        name = f"gpu-{number:04d}"

        def renamed(found, name=name, number=number):
            if found["name"]:
                return name
            rail = places.index(found["address"])
            return f"10.{rail}.{number >> 8}.{number & 255}{'/16' if found['prefix'] else ''}"

        made = json.loads(wanted.sub(renamed, text))
        made["registered"].update(shared)
        nodes[name] = made
    return nodes


class Fleet:
    """Ansible's own objects for so many nodes, without a process for each."""

    def __init__(self, nodes: dict, scratch: pathlib.Path):
        from ansible.inventory.manager import InventoryManager
        from ansible.parsing.dataloader import DataLoader
        from ansible.playbook.play_context import PlayContext
        from ansible.vars.hostvars import HostVars
        from ansible.vars.manager import VariableManager

        common = {
            "ansible_connection": "local",
            "ansible_become": False,
            "discovery_software_hcas": True,
            "discovery_root": "/nothing",
            "scratch": str(scratch),
            "k3s_bundle_dir": str(BUNDLE),
            "k3s_token": "x",
        }
        hosts: dict = {name: {} for name in nodes}
        inventory = {
            "gpu_nodes": {"hosts": hosts, "vars": common},
            "gpufabric_cluster": {"hosts": hosts},
            "gpufabric_drift": {"hosts": hosts},
            "k3s_servers": {"hosts": {next(iter(nodes)): {}}},
        }
        path = scratch / "hosts.json"
        path.write_text(json.dumps(inventory))
        self.loader = DataLoader()
        self.loader.set_basedir(str(PLAYBOOKS))
        self.inventory = InventoryManager(loader=self.loader, sources=[str(path)])
        self.variables = VariableManager(loader=self.loader, inventory=self.inventory, version_info={})
        self.context = PlayContext()
        HostVars(inventory=self.inventory, variable_manager=self.variables, loader=self.loader)
        for name, known in nodes.items():
            self.variables.set_host_facts(name, known["facts"])
            self.variables.set_nonpersistent_facts(name, known["registered"])
        self.hosts = self.inventory.get_hosts("gpu_nodes")

    def play(self, where: str, more: dict):
        from ansible.playbook import Playbook
        from ansible.playbook.play import Play
        from ansible.template import trust_as_template

        more = {name: trust_as_template(value) if isinstance(value, str) else value for name, value in more.items()}
        if where.endswith(".yml"):
            plays = Playbook.load(str(PLAYBOOKS / where), self.variables, self.loader).get_plays()
            for play in plays:
                play.vars = {**play.vars, **more}
                play.hosts = ["gpu_nodes"]
            return plays
        role, tasks = where.split("/")
        source = {
            "name": where,
            "hosts": "gpu_nodes",
            "gather_facts": False,
            "vars": more,
            "tasks": [
                {"import_role": {"name": f"gpufabric.rdma.{role}", "tasks_from": tasks, "rolespec_validate": False}}
            ],
        }
        return [Play.load(source, self.variables, self.loader)]

    def find(self, where: str, name: str, more: dict):
        from ansible.playbook.block import Block

        def tasks(parts):
            for part in parts:
                if isinstance(part, Block):
                    yield from tasks([*part.block, *part.rescue, *part.always])
                else:
                    yield part

        for play in self.play(where, more):
            for task in tasks(play.compile()):
                if task.name == name and task.action != "meta":
                    return play, task
        sys.exit(f"{where}: wanted: a task {name!r}, seen: none. Next step: correct ROWS in {__file__}")

    def run(self, play, task, host) -> dict:
        """What a worker does, in this process: all but the fork."""
        from ansible import constants
        from ansible.executor.task_executor import TaskExecutor
        from ansible.plugins import loader

        constants.set_constant("DEFAULT_NO_LOG", False)
        variables = self.variables.get_vars(play=play, host=host, task=task)
        executor = TaskExecutor(
            host,
            task.copy(),
            variables,
            self.context,
            self.loader,
            loader.get_plugin_loader_namespace(),
            Silent(),
            self.variables,
        )
        result = executor.run()
        pickle.dumps(result)
        return result

    def keep(self, task, host, result: dict) -> None:
        """As the strategy does: what a task that runs once registers is every node's."""
        hosts = self.hosts if task.run_once else [host]
        known = {**({task.register: result} if task.register else {}), **result.get("ansible_facts", {})}
        for one in hosts:
            self.variables.set_nonpersistent_facts(one.name, known)


def measured(fleet: Fleet) -> None:
    """What each node returns of the rounds of one call: as the recorded nodes did, of its own tests."""
    known = fleet.variables.get_vars(host=fleet.hosts[1])["__matrix_collected"]
    said = {result["role"]: result for result in known["results"]}
    parts = fleet.variables.get_vars(host=fleet.hosts[0])["__matrix_parts"]["hosts"]
    for host in fleet.hosts:
        steps = [step for part in parts.get(host.name, []) for step in part["steps"]]
        results = [{**said[step["role"]], "id": step["id"]} for step in steps]
        fleet.variables.set_nonpersistent_facts(host.name, {"__matrix_collected": {**known, "results": results}})


def with_gpus(fleet: Fleet) -> None:
    """The nodes of the job, which asks for GPUs: a captured machine's facts, an object of its own for each node."""
    from ansible_collections.gpufabric.rdma.plugins.plugin_utils._query import captures
    from ansible_collections.gpufabric.rdma.tests.tools import tree

    text = json.dumps(captures.facts(tree.HOSTS / "h100-8x-cx7-ib.yml"))
    for host in fleet.hosts:
        facts = json.loads(text)
        fleet.variables.set_nonpersistent_facts(host.name, {"__nccl_tests_node": {"host": host.name, "facts": facts}})


# What the nodes would have done before a row.
BEFORE = {("matrix/call", "Report progress"): measured, ("nccl_tests/main", "Render the manifest"): with_gpus}


class Silent:
    """In place of the queue to the callbacks."""

    def __getattr__(self, _name):
        return lambda *_same, **_named: None


class Nothing:
    """In place of a module, whose arguments alone are looked at."""

    def run(self, **_same):
        return {"changed": False}

    def cleanup(self, **_same):
        pass


def seconds_of(fleet: Fleet, row: tuple, profile: bool) -> float:
    where, name, kind, more = row
    BEFORE.get((where, name), lambda _fleet: None)(fleet)
    play, task = fleet.find(where, name, more)
    host = fleet.hosts[0] if kind == "once" else fleet.hosts[-1]
    profiler = cProfile.Profile()
    taken = []
    # A task of one node is short: the smallest of several.
    for _again in range(1 if kind == "once" else 5):
        start = time.process_time()
        if profile:
            profiler.enable()
        result = fleet.run(play, task, host)
        profiler.disable()
        taken.append(time.process_time() - start)
    if result.get("failed") and name not in ENDS_FAILED:
        sys.exit(f"{where}: {name}: wanted: a result, seen: {json.dumps(result, default=str)[:3000]}")
    if profile:
        pstats.Stats(profiler).sort_stats("cumulative").print_stats(45)
    fleet.keep(task, host, result)
    return min(taken)


# What the recorded nodes, which never boot, are found to lack.
ENDS_FAILED = ("Report, and fail if a check failed",)


def table(found: dict[tuple, dict[int, float]], sizes: list[int]) -> str:
    few, many = sizes[0], sizes[-1]
    lines = [f"{'task':84} {'':>6} {few:>9} {many:>9}  exponent"]
    for (where, name, kind, _more), taken in found.items():
        unit, factor = ("s", 1) if kind == "once" else ("ms", 1000)
        grown = math.log(taken[many] / taken[few]) / math.log(many / few) if many != few else float("nan")
        wanted = GOAL_EXPONENT if kind == "once" else GOAL_EXPONENT - 1
        missed = grown > wanted or (kind == "once" and taken[many] > GOAL_SECONDS)
        figures = " ".join(f"{taken[size] * factor:7.2f} {unit:2}" for size in (few, many))
        lines.append(f"{where + ': ' + name:84} {kind:>6} {figures}  {grown:5.2f}{'  !' if missed else ''}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", nargs="+", type=int, default=[64, 1000])
    parser.add_argument("--only", default="", help="rows whose text contains it; what comes before them runs too")
    parser.add_argument("--filtering", action="store_true", help="nodes filter packets, as with kube-proxy")
    parser.add_argument("--profile", action="store_true", help="print where the time goes")
    parser.add_argument("--record", action="store_true", help=f"record anew, though there is {RECORDED.name}")
    options = parser.parse_args()
    prepare()
    if options.record or not RECORDED.exists():
        RECORDED.parent.mkdir(parents=True, exist_ok=True)
        RECORDED.write_text(json.dumps(record()))
    recorded = json.loads(RECORDED.read_text())
    found: dict[tuple, dict[int, float]] = {}
    with tempfile.TemporaryDirectory() as name:
        for count in options.nodes:
            scratch = pathlib.Path(name) / str(count)
            scratch.mkdir()
            fleet = Fleet(synthetic(recorded, count, options.filtering), scratch)
            chosen = [number for number, row in enumerate(ROWS) if options.only in f"{row[0]}: {row[1]}"]
            if not chosen:
                sys.exit(f"--only {options.only}: wanted: a row with it, seen: none. Next step: see ROWS in {__file__}")
            for number, row in enumerate(ROWS[: chosen[-1] + 1]):
                # A later row judges what earlier ones registered.
                taken = seconds_of(fleet, row, options.profile and number in chosen)
                if number in chosen:
                    found.setdefault((*row[:3], ""), {})[count] = taken
                    print(count, row[:2], taken, flush=True, file=sys.stderr)
    print(table(found, options.nodes))


def prepare() -> None:
    """Ansible as its own programs set it up, silent, with modules left out."""
    from ansible.plugins.loader import init_plugin_loader

    # Before anything that imports from a collection.
    init_plugin_loader()
    from ansible import context
    from ansible.executor.task_executor import TaskExecutor
    from ansible.module_utils.common.collections import ImmutableDict
    from ansible_collections.gpufabric.rdma.plugins.plugin_utils._core import terminal

    context.CLIARGS = ImmutableDict(check=False, diff=False, verbosity=0, become=False, tags=["all"], skip_tags=[])
    terminal.show = lambda text, problem=False: None
    handler = TaskExecutor._get_action_handler_with_module_context

    def without_modules(self, templar):
        made, module = handler(self, templar)
        return (Nothing() if type(made).__module__ == "ansible.plugins.action.normal" else made), module

    TaskExecutor._get_action_handler_with_module_context = without_modules


if __name__ == "__main__":
    main()
