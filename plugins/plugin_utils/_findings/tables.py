"""What hca_facts found on many nodes, as text for people: a table of nodes, one of HCA ports, and the problems."""

import contextlib
import json

from ansible.errors import AnsibleError

from ...module_utils._core.change import Finding
from ...module_utils._core.text import alike, clean, in_a_line, of_nodes, sentence, wrapped
from ...module_utils.hca import driver as driver_facts
from .._core import libraries
from . import gpu_initiated

WIDTH = 140
_GAP = "  "
_NONE = "-"


def report(nodes):
    """The whole text. nodes: {name: {"facts": facts or None, "failure": reason, "expected_ports": ["mlx5_1/1"]}}."""
    return _report({name: _readable(name, node) for name, node in nodes.items()})


def _readable(name, node):
    """The node, without facts that only an altered node returns: they must not hide the others'."""
    try:
        _report({name: node})
    except Exception as error:  # noqa: BLE001 - any error is this node's
        return {"failure": f"its facts cannot be shown: {type(error).__name__}: {str(error)[:200]}"}
    return node


def _report(nodes):
    read = {name: node for name, node in nodes.items() if node.get("facts")}
    parts = []
    if read:
        parts += ["NODES", table(_NODE_COLUMNS, [_node_row(name, node["facts"]) for name, node in read.items()]), ""]
        rows = [row for name, node in read.items() for row in _port_rows(name, node)]
        parts += ["HCAS", table(_PORT_COLUMNS, rows) if rows else "No node has an HCA.", ""]
    states = ((name, node["facts"].get("gpu_initiated")) for name, node in read.items())
    ways = alike((name, gpu_initiated.line(state)) for name, state in states if state)
    if ways:
        lines = [wrapped("", f"{of_nodes(hosts)}: {line}", "  ") for hosts, line in ways]
        parts += ["GPU-INITIATED RDMA", *lines, ""]
    parts += ["WHAT IS WRONG", _wrong(nodes)]
    return clean("\n".join(parts) + "\n")


_NODE_COLUMNS = ("node", "system", "kernel", "arch", "HCAs", "GPUs", "rails", "driver loaded", "netns", "GPUDirect")
_PORT_COLUMNS = (
    "node", "HCA/port", "model", "PSID", "firmware", "state", "Gb/s", "layer", "netdev", "NUMA", "nearest GPU", "rail",
)  # fmt: skip


def _node_row(name, facts):
    node, driver = facts["node"], facts["driver"]["loaded"]
    return (
        name,
        f"{node['os']['id'] or '?'} {node['os']['version_id'] or ''}".strip(),
        node["kernel"],
        node["architecture"],
        len(facts["hcas"]),
        len(facts["gpus"]),
        len(facts["rails"]),
        f"{driver['flavor'] or _NONE} {driver['version'] or ''}".strip(),
        _known(facts["subsystem"]["netns_mode"]),
        facts["gpudirect"]["mode"],
    )


def _port_rows(name, node):
    facts, expected = node["facts"], node.get("expected_ports") or ()
    rails = {(rail["hca"], rail["port"]): rail["index"] for rail in facts["rails"]}
    why = {(row["hca"], row["port"]): row["code"] for row in facts["not_rails"]}
    rows = []
    for hca in facts["hcas"]:
        for port in hca["ports"]:
            key = (hca["name"], port["number"])
            wanted = key in rails or f"{key[0]}/{key[1]}" in expected
            rows.append(
                (
                    name if not rows else "",
                    f"{key[0]}/{key[1]}",
                    _model(hca),
                    hca["psid"] or _NONE,
                    hca["firmware"] or _NONE,
                    "unused" if port["state"] == "DOWN" and not wanted else port["state"] or "?",
                    f"{port['rate_gbps']:g}" if port["rate_gbps"] and port["state"] != "DOWN" else _NONE,
                    port["link_layer"] or "?",
                    port["netdev"] or _NONE,
                    hca["pci"]["numa_node"] if hca["pci"] and hca["pci"]["numa_node"] >= 0 else _NONE,
                    _nearest(hca, facts["gpus"]),
                    rails.get(key, why.get(key, _NONE)),
                )
            )
    return rows


def _model(hca):
    if not hca["pci"]:
        return "software"
    name = hca["pci"]["model"]
    known = name if _known(name) == name else f"{hca['pci']['vendor']}:{hca['pci']['device']}"
    return f"{known} {hca['function'].upper()}" if hca["function"] in ("vf", "sf") else known


def _nearest(hca, gpus):
    """`GPU0 PIX`, or `GPU0-3 NODE` if several are equally near."""
    if not hca["nearest_gpus"]:
        return _NONE
    numbers = {gpu["address"]: gpu["index"] for gpu in gpus}
    near = sorted(numbers[gpu["address"]] for gpu in hca["nearest_gpus"])
    return f"GPU{_ranges(near)} {hca['nearest_gpus'][0]['distance']}"


def _ranges(numbers):
    """[0, 1, 2, 5] as 0-2,5."""
    runs = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(start) if start == end else f"{start}-{end}" for start, end in runs)


def _known(value):
    return "unknown" if isinstance(value, str) and value.startswith("unknown") else value


def table(columns, rows):
    """Columns side by side; when they do not fit, the widest ones are cut first. Numbers are right-aligned."""
    cells = [[in_a_line(cell) for cell in row] for row in rows]
    widths = [max(len(text) for text in texts) for texts in zip(columns, *cells)]
    while sum(widths) + len(_GAP) * (len(widths) - 1) > WIDTH:
        widest = max(range(len(widths)), key=lambda index: widths[index])
        widths[widest] -= 1
    right = [_numeric([row[index] for row in cells]) for index in range(len(columns))]
    lines = [_line(columns, widths, right), _GAP.join("-" * size for size in widths)]
    return "\n".join(lines + [_line(row, widths, right) for row in cells])


def _numeric(texts):
    numbers = [text for text in texts if text != _NONE]
    return bool(numbers) and all(text.replace(".", "", 1).isdigit() for text in numbers)


def _line(cells, widths, right):
    fitted = [text if len(text) <= size else f"{text[: size - 1]}…" for text, size in zip(cells, widths)]
    return _GAP.join(
        text.rjust(size) if number else text.ljust(size) for text, size, number in zip(fitted, widths, right)
    ).rstrip()


def _wrong(nodes):
    lines = []
    for name, node in nodes.items():
        found = problems(node)
        if found:
            lines.append(f"{name}:")
            lines += [wrapped("  * ", problem) for problem in found]
    return "\n".join(lines) if lines else "Nothing."


def problems(node):
    """Sentences about one node, each with the object, what was seen and the next step."""
    facts = node.get("facts")
    if not facts:
        return [f"It could not be read: {node.get('failure') or 'no reason was given'}"]
    lines = []
    cards = facts["cards_without_rdma"]
    if not facts["hcas"] and not cards:
        lines.append("It has no HCA, and no card on PCI that could be one.")
    for reason, step in dict.fromkeys((card["reason"], card["next_step"]) for card in cards):
        alike = [card for card in cards if (card["reason"], card["next_step"]) == (reason, step)]
        named = ", ".join(f"{card['address']} ({_card_name(card)})" for card in alike)
        lines.append(f"No RDMA device on {named}: {reason} Next: {step}")
    lines += _empty_rails(facts["not_rails"]) if facts["rails"] or not cards else []
    lines += _blocked(facts["modules"])
    lines += _ports_down(facts, node.get("expected_ports") or ())
    if facts["driver"]["agree"] is False:
        lines.append(_driver(facts["driver"]))
    lines += _netns(facts["subsystem"])
    if facts["gpudirect"]["action"]:
        lines.append(f"GPUDirect: {facts['gpudirect']['verdict']} Next: {facts['gpudirect']['action']}")
    if facts["driver"]["agree"] is not False:  # reported above
        lines += [f"Reboot pending: {reason}" for reason in facts["reboot_reasons"]]
    return lines


def _empty_rails(not_rails):
    """One sentence per rail number that is empty because of a fault, not by choice."""
    step = "compare the node with others of its kind; discovery_rails can name ports that are rails all the same"
    return [
        f"Rail {row['index']} ({row['hca'] or row['pci'] or row['gpu']}) is empty: {row['reason']} Next: {step}."
        for row in not_rails
        if row["index"] is not None and row["code"] not in ("unused", "management", "named")
    ]


def _card_name(card):
    parts = [card["model"], *(card["netdevs"] or [])]
    return ", ".join(part for part in parts if part)


def _blocked(modules):
    """One sentence per file, since a file that blocks RDMA usually blocks all of it."""
    files = {}
    for name, module in modules.items():
        for entry in module["blocked_by"]:
            files.setdefault(entry["path"], {}).setdefault(name, (entry["line"], module["loaded"]))
    lines = []
    for path, blocked in files.items():
        named = ", ".join(
            f"{name} (line {line}{', loaded now' if now else ''})" for name, (line, now) in blocked.items()
        )
        lines.append(f"{path} blocks: {named}. Next: remove these lines, or the package they came with.")
    return lines


def _driver(driver):
    disk, memory = driver["on_disk"], driver["loaded"]
    differing = [
        name
        for name, module in memory["modules"].items()
        if driver_facts.compare(disk["modules"], {name: module})[0] is False
    ]
    return (
        f"Driver: {driver_facts.stack(memory)} is loaded, {driver_facts.stack(disk)} is on disk for this kernel "
        f"({', '.join(differing)} differ). Next: reload the driver or reboot, with the node drained."
    )


def _ports_down(facts, expected_ports):
    rails = {f"{rail['hca']}/{rail['port']}": f"rail {rail['index']}" for rail in facts["rails"]}
    wanted = {**dict.fromkeys(expected_ports, "an expected port"), **rails}
    states = {f"{hca['name']}/{port['number']}": port for hca in facts["hcas"] for port in hca["ports"]}
    lines = []
    for name, why in wanted.items():
        port = states.get(name)
        if port is None:
            lines.append(f"Port {name} is {why}, but the node has no such port. Next: see the table for the names.")
        elif port["state"] != "ACTIVE":
            step = "start a subnet manager" if port["state"] in ("INIT", "ARMED") else "check cable and switch port"
            if port["phys_state"] == "Disabled" and port["netdev"]:
                step = f"ip link set {port['netdev']} up, then check cable and switch port"
            lines.append(f"Port {name} is {why} and {port['state']} ({port['phys_state']}), not ACTIVE. Next: {step}.")
    return lines


def _netns(subsystem):
    mode = subsystem["netns_mode"]
    winner = next((source for source in subsystem["netns_sources"] if source["wins"]), None)
    boot = winner["mode"] if winner else None
    named = f"{winner['path']}:{winner['line']}" if winner else ""
    step = "Next: run playbooks/host.yml with rdma_netns_mode: shared"
    if winner and not winner["ours"]:
        step += "; rdma_netns_override_allowed says whether it may override that file"
    if mode == "exclusive":
        said = f" {named} sets it at every boot." if boot == mode else ""
        return [f"RDMA netns mode is exclusive: containers do not see the HCAs.{said} {step}."]
    if mode == "shared" and boot == "exclusive":
        return [f"RDMA netns mode is shared now, and {named} makes it exclusive at the next boot. {step}."]
    return []


def ask(nodes: dict, query: str) -> dict:
    """answers (the expression's value for each node), unread (the reason for each node without facts), and text.

    The text is for people, with a line per answer or, if an answer is a list, per element. AnsibleError if the
    expression cannot be evaluated. nodes: by name, with facts or failure. query: see https://jmespath.org.
    """
    try:
        import jmespath
    except ImportError:
        raise AnsibleError(sentence(libraries.missing("jmespath"))) from None
    # Ansible tags what it templates, and jmespath knows only plain types.
    nodes, query = json.loads(json.dumps(nodes)), str(query)
    facts = {name: node["facts"] for name, node in nodes.items() if node.get("facts")}
    unread = {name: node.get("failure") or "no reason given" for name, node in nodes.items() if name not in facts}
    try:
        parsed = jmespath.compile(query)
        with contextlib.suppress(jmespath.exceptions.JMESPathTypeError):
            parsed.search({})  # refuses an unknown function even without facts
        answers = {name: parsed.search(of_node) for name, of_node in facts.items()}
    except jmespath.exceptions.JMESPathError as error:
        wanted, seen = "a JMESPath expression that fits the facts", " ".join(str(error).split())
        step = 'correct it, such as hcas[].[name,firmware]; one with spaces takes -e \'{"discover_query": "…"}\''
        raise AnsibleError(sentence(Finding(f"query {query}", wanted, seen, step))) from error
    rows = [(name, row) for name, said in answers.items() for row in (said if isinstance(said, list) else [said])]
    lines = [f"{name}: {json.dumps(row, ensure_ascii=False)}" for name, row in rows]
    lines += [f"{name}: not read: {reason}" for name, reason in unread.items()]
    return {"answers": answers, "unread": unread, "text": clean("\n".join(lines) + "\n")}
