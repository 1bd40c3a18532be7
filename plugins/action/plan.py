"""Controller side of gpufabric.rdma.plan: reads nodes and prints; _preflight.plan and _matrix.tests decide."""

import os
import pathlib
import time

from ansible.errors import AnsibleConnectionFailure, AnsibleError
from ansible.module_utils.common.validation import check_type_dict
from ansible.module_utils.common.yaml import yaml_load
from ansible.module_utils.parsing.convert_bool import BOOLEANS_FALSE
from ansible.plugins.action import ActionBase
from ansible.plugins.loader import lookup_loader
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import Finding, Refused, as_dict, at
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.text import clean
from ansible_collections.gpufabric.rdma.plugins.module_utils._device_plugin import wheels as wheels_of
from ansible_collections.gpufabric.rdma.plugins.module_utils._device_plugin.config import PLUGIN
from ansible_collections.gpufabric.rdma.plugins.module_utils._driver import packages
from ansible_collections.gpufabric.rdma.plugins.modules import plan as documented
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._bundle import device_plugin, folder
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._core import addresses, fleet, libraries, terminal
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._core.guard import guarded, options
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._matrix import tests
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._preflight import firewall, host, plan, settled, variables
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._report import files as report_files

DAEMONSET = pathlib.Path(__file__).resolve().parents[2] / "device_plugin/deploy/daemonset.yaml"
# What the steps of the role discovery register.
READ, PLANNED, OUTSIDE = "__discovery_read", "__discovery_planned", "__discovery_outside"
LISTENING, TOLD = "__node_firewall_listening", "__node_firewall_told"


class ActionModule(ActionBase):
    @guarded
    def run(self, tmp=None, task_vars=None):
        super().run(tmp, task_vars)
        _validation, args = self.validate_argument_spec(
            argument_spec=options(documented.DOCUMENTATION),
            required_if=[("step", "tests", ["tests"]), ("tests", "pod_rounds", ["port"])],
        )
        if args["step"] == "tests":
            return {"changed": False, **tests.plan(args, task_vars, self._task.check_mode)}
        if args["step"] == "read":
            return self._read(args["roles"], args["server"], task_vars)
        if args["step"] == "plan":
            return self._plan(args, task_vars)
        planned = task_vars[PLANNED]
        if args["step"] == "compare":
            return self._compare(planned, task_vars)
        if args["step"] == "refuse":
            wrong = planned["hosts"][task_vars["inventory_hostname"]]["findings"]
            objects = ", ".join(dict.fromkeys(item["object"] for item in wrong))
            msg = f"{objects}: see the list above; nothing has been changed"
            return {"changed": False, "failed": bool(wrong), "msg": msg if wrong else "", "findings": wrong}
        text = plan.text(planned, args["roles"], self._task.check_mode)
        if text:
            terminal.show(text)
        return {"changed": False, "plan": clean(text).splitlines() if not planned["findings"] else []}

    def _read(self, roles, server, task_vars):
        """The host's variables, typed, and its facts; why it cannot be read is data, for the list of all problems.

        server: a server that this run leaves out and delegates to.
        """
        host = server or task_vars["inventory_hostname"]
        known = task_vars["hostvars"][host] if server else task_vars
        typed, wrong = self._variables(roles, known)
        specs = variables.options()
        result = {
            "changed": False,
            "host": host,
            "address": self._templar.template(known.get("ansible_host") or host),
            # Ansible prints and stores results, so they must not hold a secret.
            "variables": {name: value for name, value in typed.items() if not specs[name].get("no_log")},
            "problems": [as_dict(finding) for finding in wrong],
        }
        try:
            seen = self._execute_module(
                "gpufabric.rdma.node_facts", module_args=self._asked(roles, typed, host, task_vars), task_vars=task_vars
            )
        except AnsibleConnectionFailure as error:
            return {**result, "lost": str(error), "failure": f"unreachable: {error}"}
        except AnsibleError as error:
            return {**result, "failure": " ".join(str(error).split())}
        if seen.get("failed"):
            return {**result, "failure": fleet.failure(seen)}
        if wrong := addresses.malformed(seen):
            return {**result, "failure": f"it reports as its own addresses and networks {wrong}"}
        return {**seen, **result, "ansible_facts": {} if server else seen.get("ansible_facts") or {}}

    def _variables(self, roles, task_vars):
        specs, by_role = variables.options(), variables.documented_roles()
        own = specs if plan.HOST_LAYER in roles else variables.options([name for name in roles if name in by_role])
        typed, invalid = variables.effective(specs, task_vars, self._templar.template)
        wrong = [finding for finding in invalid if finding.object.removeprefix("variable ") in own]
        checked = {name: typed[name] for name in own}
        wrong += host.values(checked, own)
        wrong += host.unknown(task_vars, specs, by_role, typed["discovery_known_variables"])
        if plan.HOST_LAYER in roles and str(self._templar.template(task_vars.get("cluster"))).lower() in BOOLEANS_FALSE:
            wrong += host.without_cluster(task_vars, variables.of_cluster())
        typed.update(checked)
        if typed["k3s_bundle_dir"]:
            # Tasks would look for a relative path beside the playbook.
            typed["k3s_bundle_dir"] = os.path.abspath(typed["k3s_bundle_dir"])
        else:
            typed["k3s_bundle_dir"] = folder.cache() if {"k3s", "cni_plugins"} & set(roles) else None
        for name in ("driver_repository_key", "driver_host_package"):
            path = os.path.abspath(os.path.expanduser(typed[name]))
            if name in own and typed[name] and typed["driver_flavor"] != "verify" and not os.path.isfile(path):
                step = "correct the path; a relative one starts where ansible-playbook runs"
                wrong.append(Finding(f"variable {name}", "a file on the controller", f"no file {path}", step))
        return typed, wrong

    def _asked(self, roles, typed, host, task_vars) -> dict:
        """Arguments of node_facts: one call for all that the planners of these roles ask."""
        serves = host in self._members(task_vars)[1]
        asked = {
            "root": typed["discovery_root"],
            "software_hcas": typed["discovery_software_hcas"],
            "rails": typed["discovery_rails"],
            "firewall": "node_firewall" in roles,
            "runtime": "device_plugin" in roles and typed["device_plugin_api"] != PLUGIN,
        }
        if {"fabric", plan.HOST_LAYER} & set(roles):
            asked["firmware"] = typed["fabric_firmware"]
        if "k3s" in roles:
            shared = {"shared_address": typed["k3s_api_address"]} if serves and typed["k3s_api_address"] else {}
            asked["k3s"] = {"tests_namespace": typed["verification_namespace"], **shared}
        elif "reset" in roles or (serves and "node_ready" in roles):
            asked["k3s"] = {}
        if "networks" in roles:
            asked["networks"] = {"directory": typed["networks_multus_conf_dir"]}
        return asked

    def _compare(self, planned, task_vars):
        """What the roles of the cluster layer would change on the node; one call, and nothing is changed."""
        typed, _invalid = variables.effective(variables.options(), task_vars, self._templar.template)
        asked = settled.options(
            {**typed, **task_vars},
            lambda known: self._templar.copy_with_new_env(available_variables=known),
        )
        decided, root = planned["hosts"][task_vars["inventory_hostname"]], typed["discovery_root"]
        binaries = decided["cni_plugins"]["binaries"]
        asked["cni_plugins"] = {"binaries": binaries, "directory": typed["cni_plugins_directory"]}
        asked["device_plugin"] |= device_plugin.locked() if "config" in asked["device_plugin"] else {}
        asked = {"facts": False, "settled": asked, "root": root}
        answer = self._execute_module("gpufabric.rdma.node_facts", module_args=asked, task_vars=task_vars)
        if answer.get("failed"):
            return answer
        boot_id = task_vars["ansible_facts"]["rdma"]["node"]["boot_id"] if not root.rstrip("/") else None
        left = settled.reasons(answer["settled"], decided, typed, boot_id)
        return {"changed": False, "settled": not left, "reasons": left}

    def _plan(self, args, task_vars):
        strategy = self._task.get_play().strategy.rpartition(".")[2]
        if strategy in ("free", "host_pinned"):
            wanted, step = "linear: one plan, made of all nodes", "run again with ANSIBLE_STRATEGY=linear"
            raise Refused([Finding("strategy of the play", wanted, strategy, step, "controller:strategy")])
        nodes = _read_of(task_vars, args["hosts"], args["read_since"])
        run = self._run_of(args, nodes, task_vars)
        planned = plan.plan(nodes, run)
        found, warned = device_plugin.checked(planned, nodes)
        found += self._unwritable(args, nodes, task_vars)
        planned = plan.with_findings(planned, [*planned["findings"], *found])
        if plan.HOST_LAYER not in args["roles"] and PLANNED in task_vars:
            planned = plan.merged(task_vars[PLANNED], planned, args["answered"])
        notes = [] if planned["findings"] else [*planned["notes"], *warned]
        return {"changed": False, **planned, "warnings": terminal.warnings(notes)}

    def _unwritable(self, args, nodes, task_vars):
        """Why the page or the kubeconfig of this run cannot be written where it should go."""
        wrong = {}
        if args["page"]:
            typed, _invalid = variables.effective(variables.options(["report"]), task_vars, self._templar.template)
            path = report_files.page_path(typed["report_file"], task_vars.get("ansible_inventory_sources") or [])
            step = "set report_file to a path that can be written, or report_written to false"
            wrong["report"] = report_files.unwritable(path, "the report", step) if typed["report_written"] else []
        if nodes and "k3s" in args["roles"] and not (args["partial"] or args["upgrade"]):
            wrong["k3s"] = report_files.kubeconfig(nodes[0]["variables"].get("k3s_kubeconfig"))
        return [{**row, "role": role} for role, found in wrong.items() for row in at(plan.CONTROLLER, found)]

    def _run_of(self, args, nodes, task_vars):
        group, servers = self._members(task_vars)
        answers = {}
        if args["answered"]:
            given = fleet.variables(task_vars, args["hosts"], {"listening": LISTENING, "told": TOLD})
            answers = {host: (one.get("listening"), one.get("told")) for host, one in zip(args["hosts"], given)}
        return plan.Run(
            roles=args["roles"],
            hosts=args["hosts"],
            groups=task_vars["groups"],
            nodes=group,
            servers={name: self._server(name, task_vars) for name in servers},
            bundle=nodes[0]["variables"]["k3s_bundle_dir"] if nodes else None,
            lock=folder.lock(),
            daemonset=yaml_load(DAEMONSET.read_text(encoding="utf-8")),
            now=time.time(),
            offered=args["offered"],
            outside=[row for row in (task_vars.get(OUTSIDE) or {}).get("results") or [] if "host" in row],
            answers=answers,
            lacking={
                tool: name
                for tool, name in firewall.COLLECTIONS.items()
                if not libraries.installed(f"ansible_collections.{name}")
            },
            upgrade=args["upgrade"],
            partial=args["partial"],
            **self._cache(nodes, args["partial"], task_vars),
        )

    def _cache(self, nodes, partial, task_vars) -> dict:
        """What the controller's cache lacks for these nodes, if it is their bundle, and what they fetch themselves."""
        read = [node for node in nodes if (node.get("ansible_facts") or {}).get("rdma")]
        where = folder.cache()
        if not read or read[0]["variables"]["k3s_bundle_dir"] != where:
            return {}
        options = ("lock", "image_digests", "mirrors")
        given = {name: self._templar.template(task_vars.get(f"bundle_{name}")) for name in options}
        path = os.path.abspath(os.path.expanduser(given["lock"])) if given["lock"] else str(folder.LOCK)
        lock = folder.own_lock(path) if given["lock"] else folder.lock()
        of_nodes = [node["ansible_facts"]["rdma"]["node"] for node in read]
        architectures = sorted({packages.architecture(node) for node in of_nodes} & {"amd64", "arm64"})
        distributions = sorted({packages.distribution(node) for node in of_nodes})
        platforms, digests = (architectures, distributions), given["image_digests"] or {}
        own = {node["variables"]["k3s_downloads_on_nodes"] for node in read}
        known = folder.READ if own == {True} else folder.CACHED
        mirrors = check_type_dict(given["mirrors"] or {})
        downloads = folder.downloads(lock, platforms, digests, mirrors) if True in own else []
        rows = folder.rows_of(lock, known, platforms, digests)
        described, files = folder.cached(where, lock.get("origin", "release"), rows)
        pythons, wheels = _wheels(read, os.path.join(where, "wheels"))
        # A comparison needs no libraries.
        if not files and (partial or not wheels):
            return {"downloads": downloads}
        names = sorted({row["name"] for kind in ("artifacts", "images") for row in lock[kind]} & set(known))
        fetch = {
            "folder": where,
            "files": files,
            "wheels": wheels,
            "described": described,
            "names": names,
            "programs": folder.PROGRAMS,
            "architectures": architectures,
            "distributions": distributions,
            "pythons": pythons,
            "lock": path,
        }
        return {"downloads": downloads, "fetch": fetch}

    def _members(self, task_vars):
        """(nodes, servers) of the inventory, also outside this run; as the variables of the role common."""
        groups, named = task_vars["groups"], self._templar.template(task_vars.get("discovery_hosts"))
        group = groups.get(named or "gpu_nodes")
        if not group and named:
            pattern = lookup_loader.get("ansible.builtin.inventory_hostnames", loader=self._loader)
            group = pattern.run([named], variables=task_vars)
        group = group or groups["all"]
        return group, groups.get("k3s_servers", group[:1])

    def _server(self, name, task_vars):
        """(ansible_host, k3s_node_ip) of a server, in this run or not."""
        known = task_vars["hostvars"][name]
        option = {"k3s_node_ip": variables.options()["k3s_node_ip"]}
        typed, _invalid = variables.effective(option, known, self._templar.template)
        return known.get("ansible_host"), typed["k3s_node_ip"]


def _read_of(task_vars, hosts, since) -> list[dict]:
    """What was read from each host, with the parts that a later reading replaced."""
    known = fleet.variables(task_vars, hosts, {"read": READ, **({"since": since} if since else {})})
    nodes = []
    for of_host in [of_host for of_host in known if "read" in of_host]:
        read, later = of_host["read"], of_host.get("since") or {}
        own = {key: read[key] for key in plan.OWN}
        if since and "ansible_facts" not in later:
            read, later = own, {"failure": later.get("failure") or later.get("msg")}
        nodes.append({**read, **later, **own})
    return nodes


def _wheels(nodes, where) -> tuple[list[str], bool]:
    """Pythons of the nodes that install the device plugin from the bundle, and whether the folder lacks a library."""
    own = [
        (node["k3s"]["python"], node["ansible_facts"]["rdma"]["node"]["architecture"])
        for node in nodes
        if node["variables"]["device_plugin_mode"] == "systemd"
        and not node["variables"]["device_plugin_wheel_dir"]
        and (node.get("k3s") or {}).get("python")
    ]
    wanted = {file for each in set(own) for file in wheels_of.fitting(folder.lock()["wheels"], *each)}
    return sorted({python for python, _machine in own}), any(not os.path.isfile(f"{where}/{file}") for file in wanted)


# Here, where Ansible loads the plugin, and not in each process that it forks for a task.
variables.documented_roles()
settled.written()
