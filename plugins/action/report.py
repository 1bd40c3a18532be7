"""Controller side of gpufabric.rdma.report: the packages decide what to report; this prints, writes and fails."""

import json
import os
import pathlib

import yaml
from ansible.plugins.action import ActionBase
from ansible.utils.vars import load_extra_vars
from ansible_collections.gpufabric.rdma.plugins.module_utils._core import files as core_files
from ansible_collections.gpufabric.rdma.plugins.module_utils._core import text as core_text
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import Finding, at
from ansible_collections.gpufabric.rdma.plugins.modules import report as documented
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._core import fleet, libraries, terminal
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._core.guard import guarded, options
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._drift import verdicts as drift_verdicts
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._findings import diagnosis, tables
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._matrix import judge as matrix_judge
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._nccl import job as nccl_job
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._nccl import log as nccl_log
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._preflight import fabric_plan
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._report import document, files, page
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._report import judge as report_judge
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._verify import host_checks, judge

# Variables that each host has; the others are taken from the host that runs the task.
OF_HOSTS = ("read", "unasked", "cni", "started", "collected")
JOB_HEADER = (
    "# All-reduce over the rails of these nodes. Evidence level E5 (hardware): not verified by the tests of\n"
    "# gpufabric.rdma.\n"
)
DRIFT_FILES = ("json_file", "junit_file", "verdict_file")


class ActionModule(ActionBase):
    _requires_connection = False

    @guarded
    def run(self, tmp=None, task_vars=None):
        super().run(tmp, task_vars)
        _validation, args = self.validate_argument_spec(
            argument_spec=options(documented.DOCUMENTATION),
            required_if=[
                ("kind", "nccl_job", ["job"]),
                ("kind", "nccl_log", ["log"]),
                ("kind", "saved", ["directory"]),
                ("kind", "capture", ["fixture", "file"]),
                ("kind", "drift", ["mark"]),
                ("mark", "begin", ["directory"]),
            ],
        )
        return {"changed": False, **getattr(self, f"_of_{args['kind']}")(args, task_vars or {})}

    def _of_verification(self, args, task_vars):
        known, shared = _known(args, task_vars)
        for of_host in known:
            if "node" in of_host:
                of_host["node"].update(_of_plans(of_host, shared.get("planned"), shared.get("ports")))
        if not args["pods"]:
            shared.pop("offered", None)
        judged = judge.judge(judge.gather(args["hosts"], known, shared), self._task.check_mode)
        rows, written = judged["judged"], {}
        if args["results"] or args["page"]:
            results = document.collect(rows, [of_host["node"] for of_host in known if "node" in of_host], files.now())
        if args["results"]:
            written = self._write({args["results"]: files.as_json(results)})
        verdicts = {node["host"]: node["diagnosis"] for node in rows if node.get("diagnosis")}
        text = host_checks.report_text(rows, self._task.check_mode)
        if any("gbps" in item.get("figures", {}) for row in rows for item in row["checks"]):
            text += _class_of(known)
        if verdicts:
            text = f"Root causes\n{diagnosis.text(verdicts)}\n\n{text}"
        terminal.show(f"{text}\n")
        if args["page"]:
            path = files.page_path(args["file"], task_vars.get("ansible_inventory_sources") or [])
            self._write({path: terminal.here(page.page(results, args["title"]))})
            terminal.show(f"The report {'would be' if self._task.check_mode else 'is'} {path}\n")
        failed = {row["host"]: host_checks.tally(row["checks"])[host_checks.FAILED] for row in rows}
        # A failed check that belongs to no host, such as one of the cluster, fails all hosts.
        others = sum(count for name, count in failed.items() if name not in args["hosts"])
        failing = {name: failed.get(name, 0) + others for name in args["hosts"]}
        return {**written, "checks": judged["checks"], "failing": failing}

    def _of_matrix(self, args, task_vars):
        known, shared = _known(args, task_vars, "read")
        if not args["pods"]:
            shared = {"planned": shared["planned"]}
        matrix = matrix_judge.of_run(args["hosts"], known, shared, self._task.check_mode, files.now())
        text = matrix_judge.told(matrix, [shared[key] for key in ("planned", "pod_rounds") if key in shared])
        if any(row["gbit_per_s"] is not None for row in matrix["tests"]):
            text += _class_of(known)
        terminal.show(f"{text}\n")
        texts = {}
        if args["json_file"]:
            texts[args["json_file"]] = files.as_json(matrix)
        if args["text_file"]:
            texts[args["text_file"]] = f"{core_text.clean(text)}\n"
        asked = ("offered", "pods", "ran", "pod_rounds", "sent", "removed")
        return {
            **self._write(texts),
            "document": matrix,
            "tally": matrix_judge.tally(matrix),
            "pods_failure": fleet.failure(*(shared.get(key) for key in asked)),
        }

    def _of_nccl_job(self, args, task_vars):
        facts = fleet.facts(task_vars, args["hosts"])
        nodes = [{"host": host, "facts": of_host} for host, of_host in zip(args["hosts"], facts)]
        job = args["job"]
        if job["networks"] is None:
            variables = fleet.each(task_vars, args["hosts"][:1], fleet.READ)[0]["variables"]
            job["networks"], span = nccl_job.rail_networks(nodes, variables)
            job["address_range"] = job["address_range"] or span
        findings = nccl_job.findings(nodes, job)
        if findings:
            terminal.show(f"{core_text.four_facts(findings)}\n")
            what = f"{core_text.count(len(findings), 'problem')} with the nccl-tests job"
            return {"failed": True, "msg": f"{what}; nothing was written. Each is listed above."}
        # The controller tags the values it templates; YAML needs plain ones.
        objects = json.loads(json.dumps(nccl_job.objects(nodes, job)))
        text = JOB_HEADER + yaml.safe_dump_all(objects, sort_keys=False, width=1000)
        if args["file"]:
            return self._write({pathlib.Path(args["file"]): text})
        terminal.show(text)
        return {"objects": objects}

    def _of_nccl_log(self, args, task_vars):
        path, facts = args["log"], fleet.facts(task_vars, args["hosts"])
        try:
            text = pathlib.Path(path).read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            msg = f"the NCCL log {path} cannot be read: {error.strerror}; give the file with nccl_tests_log"
            return {"failed": True, "msg": msg}
        parsed = nccl_log.parse(text)
        hcas = list(dict.fromkeys(rail["hca"] for of_host in facts for rail in of_host["rails"]))
        checks = nccl_log.checks(parsed, hcas, args["minimum_gbyte_per_s"])
        terminal.show(f"{nccl_log.report(path, parsed, checks)}\n")
        failed = [item["object"] for item in checks if item["status"] == "failed"]
        if failed:
            return {"failed": True, "msg": f"{path}: {core_text.listing(failed)} failed; each is listed above"}
        return {}

    def _of_saved(self, args, _task_vars):
        paths = {kind: args[kind] for kind in document.SCHEMAS if args[kind] or kind == "results"}
        read = {kind: files.load(kind, path) for kind, path in paths.items()}
        wrong = [(paths[kind], finding) for kind, (_found, finding) in read.items() if finding]
        if wrong:
            return _refused(wrong)
        results = {"drift": None, "matrix": None, **read["results"][0]}
        results.update({kind: found for kind, (found, _finding) in read.items() if kind != "results"})
        try:
            texts = {
                "report.html": terminal.here(page.page(results, args["title"])),
                "report.json": files.as_json(results),
                "report.xml": document.junit(results),
            }
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            wanted, seen = "documents as docs/schemas/results-1.json describes them", f"{type(error).__name__}: {error}"
            return _refused([(", ".join(paths.values()), Finding("content", wanted, seen, document.ANEW))])
        written = self._write({pathlib.Path(args["directory"]) / name: text for name, text in texts.items()})
        _level, headline = report_judge.headline(report_judge.nodes(results))
        terminal.show(f"{headline}: {written['files'][0]['path']}")
        return written

    def _of_facts(self, args, task_vars):
        nodes = dict(zip(args["hosts"], fleet.each(task_vars, args["hosts"], args["variables"].get("node", "node"))))
        if args["query"] is None:
            terminal.show(tables.report(nodes))
            return {}
        answers = tables.ask(nodes, args["query"])
        if not nodes:
            return {}
        terminal.show(answers["text"])
        if not args["json_file"]:
            return {}
        return self._write({args["json_file"]: files.as_json({"query": args["query"], **answers})})

    def _of_capture(self, args, _task_vars):
        return self._write({args["file"]: files.capture_text(args["fixture"])})

    def _of_text(self, args, _task_vars):
        """debug would print a node's control characters."""
        terminal.show(args["text"])
        return {}

    def _of_warning(self, args, _task_vars):
        return {"warnings": terminal.warnings([args["text"]])}

    def _of_findings(self, args, task_vars):
        findings = [*libraries.findings(args["libraries"]), *self._unheard(task_vars)] if args["libraries"] else []
        findings += [Finding(*(finding[fact] for fact in Finding._fields)) for finding in args["findings"]]
        if not findings:
            return {"findings": []}
        lead = [args["text"]] if args["text"] else []
        msg = terminal.here("\n".join([*lead, *map(core_text.sentence, findings)]))
        return {"failed": True, "findings": at(task_vars["inventory_hostname"], findings), "msg": msg}

    def _unheard(self, task_vars) -> list[Finding]:
        """Variables that choose the hosts of plays, set where plays do not look."""
        heard = {**load_extra_vars(self._loader), **self._task.get_play().vars}
        return [
            Finding(
                f"variable {name}",
                "given with -e",
                "set in the inventory, where plays do not look for their hosts",
                f"run again with -e {name}={self._templar.template(task_vars[name])}, and take it out of the inventory",
                "controller:hosts",
            )
            for name in ("discovery_hosts", "policy_hosts")
            if name in task_vars and name not in heard
        ]

    def _of_drift(self, args, task_vars):
        marked = {"drift_mark": args["mark"], "hosts": args["hosts"], "text": args["text"]}
        if args["mark"] != "begin":
            return marked
        problem = _unguarded(task_vars)
        if problem:
            return {**marked, "failed": True, "msg": problem}
        folder = pathlib.Path(os.environ.get("PWD") or os.getcwd(), args["directory"])
        paths = {name: str(folder / args[name]) if args[name] else "" for name in DRIFT_FILES}
        try:
            # An earlier run's results go before this run starts: they must not be mistaken for its own.
            folder.mkdir(parents=True, exist_ok=True)
            for path in [path for path in paths.values() if path and not core_files.is_special(path)]:
                pathlib.Path(path).unlink(missing_ok=True)
        except OSError as error:
            step = "set drift_directory or the file's variable to one"
            wrong = Finding(error.filename, "a path that this controller may write", error.strerror, step)
            return {**marked, "failed": True, "msg": core_text.sentence(wrong)}
        return {**marked, "settings": {**paths, "run": args["run"]}}

    def _write(self, texts: dict) -> dict:
        return files.write(texts, self._task.check_mode)


def _known(args, task_vars, needed="") -> tuple[list[dict], dict]:
    """(values of each host, values of this host for all) of the defined variables."""
    names = {key: name for key, name in args["variables"].items() if key in OF_HOSTS}
    shared = {key: task_vars[name] for key, name in args["variables"].items() if task_vars.get(name)}
    shared["node"] = {"variables": task_vars[fleet.READ]["variables"]}
    return fleet.nodes(task_vars, args["hosts"], names, needed), shared


def _class_of(known) -> str:
    nodes = [of_host["node"] for of_host in known if "node" in of_host]
    facts = [node.get("facts") or node["read"].get("ansible_facts", {}).get("rdma") for node in nodes]
    told = fabric_plan.told(fabric_plan.of(nodes[0]["variables"]["fabric_plan"]), list(filter(None, facts)))
    return f"\n\n{told}" if told else ""


def _of_plans(of_host: dict, planned: dict | None, ports: dict | None) -> dict:
    """What was planned for a node before it was read, and what its peers have said about its ports since."""
    name, unasked = of_host["node"]["host"], of_host.get("unasked")
    decided = ((planned or {}).get("hosts") or {}).get(name) or {}
    firewall = (((ports or {}).get("hosts") or {}).get(name) or {}).get("firewall") or {}
    return {
        "planned": decided.get("plan") or [],
        "boot_id": decided.get("boot_id"),
        "firewall": None if unasked else firewall.get("results"),
        "firewall_failure": unasked or of_host["read"].get("failure"),
    }


def _unguarded(task_vars) -> str | None:
    """Why the recorder would not keep this run from changing a node."""
    if not task_vars.get("ansible_check_mode"):
        return "drift: wanted a run in check mode, seen one without. Next step: run again with --check"
    if os.environ.get(drift_verdicts.LISTENING) != "1":
        return (
            "drift recorder: wanted it loaded with the playbook, seen none. Next step: run the collection's playbook "
            "gpufabric.rdma.drift, or set callbacks_enabled to gpufabric.rdma.drift"
        )
    return None


def _refused(wrong: list) -> dict:
    told = [": ".join(filter(None, (path, core_text.sentence(finding)))) for path, finding in wrong]
    findings = at("the controller", [finding for _path, finding in wrong])
    return {"failed": True, "findings": findings, "msg": "\n".join(["Nothing was written.", *told])}
