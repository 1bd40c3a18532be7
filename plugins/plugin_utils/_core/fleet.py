"""What a run knows of its hosts, for actions that judge all of them.

An argument such as `hosts | map('extract', hostvars, 'known')` would copy what each host has registered into the task;
here an action takes what it asks for.
"""

from typing import Any

from ansible.errors import AnsibleError

from ...module_utils._core.change import Finding
from ...module_utils._core.text import sentence

# What the role discovery registers on each host: its typed variables and its facts.
READ = "__discovery_read"


def variables(task_vars: dict, hosts: list[str], names: dict[str, str], needed: str = "") -> list[dict[str, Any]]:
    """For each host, in order, the defined ones of these variables. names: {key: variable}.

    AnsibleError lists all hosts that lack the needed one, a key.
    """
    known = [task_vars["hostvars"][host] for host in hosts]
    rows = [{key: of_host[name] for key, name in names.items() if name in of_host} for of_host in known]
    if needed:
        lacking = [host for host, row in zip(hosts, rows) if needed not in row]
        _refuse(lacking, f"the variable {names.get(needed, needed)}")
    return rows


def each(task_vars: dict, hosts: list[str], name: str) -> list[Any]:
    """The variable of each host. AnsibleError lists all hosts that lack it."""
    return [of_host[name] for of_host in variables(task_vars, hosts, {name: name}, name)]


def nodes(task_vars: dict, hosts: list[str], names: dict[str, str], needed: str = "") -> list[dict[str, Any]]:
    """For each host its variables (see above), and as node the input for planning and judging tests: host, address,
    variables, read, and facts where `read`, what a module read for the tests, has none.
    """
    rows = variables(task_vars, hosts, {**names, "discovered": READ, "facts": "ansible_facts"}, needed)
    return [_with_node(**row) for row in rows]


def _with_node(discovered: dict | None = None, facts: dict | None = None, **row: Any) -> dict[str, Any]:
    if not discovered or not row.get("read"):
        return row
    own = {} if "ansible_facts" in row["read"] else {"facts": (facts or {}).get("rdma")}
    node = {key: discovered[key] for key in ("host", "address", "variables")}
    return {**row, "node": {**node, **own, "read": row["read"]}}


def facts(task_vars: dict, hosts: list[str]) -> list[dict]:
    """The RDMA facts of each host. AnsibleError lists all hosts that lack them."""
    known = variables(task_vars, hosts, {"facts": "ansible_facts"})
    rdma = [(of_host.get("facts") or {}).get("rdma") for of_host in known]
    _refuse([host for host, own in zip(hosts, rdma) if not own], "ansible_facts['rdma']")
    return rdma


def _refuse(hosts: list[str], lacking: str) -> None:
    if hosts:
        step = "see above which task failed on these hosts, fix that and run again"
        raise AnsibleError(sentence(Finding(", ".join(hosts), lacking, "undefined", step)))


def failure(*results: dict | None) -> str:
    """Why the first failed one of these results failed; empty if none did.

    A module that never ran (Python, sudo, a full disk) has its reason only in what the node printed.
    """
    failed = next((result for result in results if result and result.get("failed")), None)
    if failed is None:
        return ""
    printed = "\n".join(str(failed.get(stream) or "") for stream in ("module_stdout", "module_stderr"))
    said = [line.strip() for line in printed.splitlines() if line.strip() and not line.startswith("Shared connection")]
    return "; it printed: ".join([failed.get("msg") or "the module gave no reason", *said[-1:]])
