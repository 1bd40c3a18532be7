# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Controller side of gpufabric.rdma.verify_checks: the packages decide; this prints, and fails in one place."""

from __future__ import annotations

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible_collections.gpufabric.rdma.plugins.module_utils._kube import pods
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._findings import diagnosis
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._preflight import host as preflight_host
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._verify import host_checks, pairs, pod_checks


class ActionModule(ActionBase):
    TRANSFERS_FILES = False
    _requires_connection = False
    _supports_check_mode = True

    def run(self, tmp=None, task_vars=None):
        super().run(tmp, task_vars)
        _validation, args = self.validate_argument_spec(
            argument_spec={
                "stage": {"type": "str", "required": True, "choices": ["pair", "pods", "judge", "report"]},
                "hosts": {"type": "list", "elements": "str", "default": []},
                "nodes": {"type": "list", "elements": "dict", "default": []},
                "plan": {"type": "dict"},
                "results": {"type": "list", "elements": "dict", "default": []},
                "servers": {"type": "list", "elements": "dict", "default": []},
                "failures": {"type": "list", "elements": "str", "default": []},
                "cluster": {"type": "dict", "default": {}},
            },
            required_if=[("stage", "judge", ["plan"])],
        )
        return {"changed": False, **getattr(self, f"_{args['stage']}")(args)}

    def _pair(self, args):
        """Plan the fabric tests of the play, and say for each host which ends it runs."""
        hosts = {node["host"]: {"serve": [], "connect": []} for node in args["nodes"]}
        usable = [node for node in args["nodes"] if node["read"].get("probe")]
        wanted = [node for node in usable if node["variables"]["verification_fabric"]]
        if not wanted:
            return {"plan": {"tests": [], "unpaired": [], "clashes": []}, "hosts": hosts}
        ends = [
            {
                "host": node["host"],
                "facts": node["read"]["ansible_facts"]["rdma"],
                "address": node["variables"]["verification_address"] or node["address"],
                "tools": node["read"]["probe"]["tools"],
                "base_port": node["variables"]["verification_port"],
                "runs": node["read"]["probe"]["char_devices"] is not None,
            }
            for node in wanted
        ]
        plan = pairs.plan(ends)
        for test in plan["tests"]:
            if not test["missing"]:
                hosts[test["server"]["host"]]["serve"].append(test)
                hosts[test["client"]["host"]]["connect"].append(test)
        return {"plan": plan, "hosts": hosts}

    def _pods(self, args):
        """Plan the test pods from what the cluster offers; nothing where it could not be asked."""
        read = args["cluster"].get("read") or {}
        empty = {"namespace": args["cluster"]["namespace"], "objects": [], "pods": [], "left_out": {}}
        if not read.get("cluster") or args["cluster"].get("pod_name"):
            return {"plan": empty}
        hosts = args["cluster"]["hosts"]
        cluster = {**read["cluster"], "networks": pod_checks.networks_of(read["cluster"], hosts)}
        cluster["nads"] = [nad for nad in cluster["nads"] if nad["kind"] == "NetworkAttachmentDefinition"]
        options = {key: args["cluster"][key] for key in ("namespace", "image")}
        return {"plan": pods.plan(hosts, cluster, options)}

    def _judge(self, args):
        """All checks of all hosts, and what the report says of each."""
        results = {item["id"]: item for one in args["results"] for item in one.get("results") or []}
        servers = {name: error for one in args["servers"] for name, error in (one.get("servers") or {}).items()}
        # A node that gave up half-way explains its tests better than "no result" does.
        failed = dict(zip((node["host"] for node in args["nodes"]), args["failures"]))
        for test in args["plan"]["tests"]:
            reasons = [
                f"{side}: {failed[side]}"
                for side in (test["server"]["host"], test["client"]["host"])
                if failed.get(side)
            ]
            if reasons:
                servers[test["id"]] = "; ".join(reasons)
        check_mode = self._task.check_mode
        known = {node["host"]: node for node in args["nodes"]}
        judged = []
        for host in args["hosts"]:
            node = known.get(host)
            if node is None:
                judged.append(
                    {"host": host, "facts": None, "checks": host_checks.absent("an earlier step of this run failed")}
                )
            elif not node["read"].get("probe"):
                judged.append({"host": host, "facts": None, "checks": host_checks.absent(self._silence(node["read"]))})
            else:
                judged.append(self._judge_node(node, check_mode))
        by_host = {node["host"]: node["checks"] for node in judged}
        percents = {node["host"]: node["variables"]["verification_bandwidth_minimum_percent"] for node in args["nodes"]}
        for host, item in host_checks.fabric_checks(args["plan"], results, servers, percents, check_mode):
            by_host[host].append(item)
        if args["cluster"]:
            read = {node["host"]: node["read"].get("ansible_facts", {}).get("rdma", {}) for node in args["nodes"]}
            drivers = {host: facts.get("driver") for host, facts in read.items()}
            for host, item in pod_checks.cluster_checks({**args["cluster"], "drivers": drivers}, check_mode):
                by_host[host].append(item)
        named, verdicts = diagnosis.diagnose(by_host)
        for node in judged:
            node.update(checks=named[node["host"]], diagnosis=verdicts.get(node["host"]))
        return {"judged": judged, "checks": named}

    def _judge_node(self, node, check_mode):
        facts = node["read"]["ansible_facts"]["rdma"]
        outcome = preflight_host.plan(facts, node["variables"])
        return {
            "host": node["host"],
            "facts": {key: facts[key] for key in ("hcas", "rails")},
            "checks": host_checks.host_checks(facts, node["variables"], node["read"]["probe"], check_mode),
            "planned": node["planned"],
            "pending": outcome["changes"],
            "reboot_reasons": outcome["reboot_reasons"] + facts["reboot_reasons"],
            "rebooted": node["boot_id"] not in (None, facts["node"]["boot_id"]),
        }

    @staticmethod
    def _silence(read):
        return read.get("failure") or f"unreachable: {read.get('msg', 'no reason given')}"

    def _report(self, args):
        verdicts = {node["host"]: node["diagnosis"] for node in args["nodes"] if node.get("diagnosis")}
        text = host_checks.report_text(args["nodes"], self._task.check_mode)
        if verdicts:
            text = f"Root causes\n{diagnosis.text(verdicts)}\n\n{text}"
        Display().display(f"{text}\n")
        total = host_checks.tally([item for node in args["nodes"] for item in node["checks"]])
        if total[host_checks.FAILED]:
            return {"failed": True, "msg": f"{total[host_checks.FAILED]} of the checks failed; each is listed above"}
        return {"tally": total, "report": text.splitlines()}
