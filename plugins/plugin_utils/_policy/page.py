"""One foreign object while it is read: a line about each of its fields, so that none is dropped silently. Pure."""

import copy
import json

from ...module_utils._core import text as core_text
from ...module_utils._core.change import Finding

TAKEN, WRONG, LEFT_OUT, UNKNOWN = "taken", "wrong", "left out", "unknown"
NOTHING = "nothing"
# Fields of a NicClusterPolicy that are often a level too high or too low, and where they belong.
_BELONGS = {
    **dict.fromkeys(("multus", "cniPlugins", "ipoib", "ipamPlugin"), "spec.secondaryNetwork"),
    **dict.fromkeys(("nvIpam", "ofedDriver", "rdmaSharedDevicePlugin", "sriovDevicePlugin", "global"), "spec"),
    **dict.fromkeys(("configList", "resourceList", "periodicUpdateInterval"), "the component's config, a JSON string"),
    **dict.fromkeys(("poolName", "poolType", "range", "subnet"), "spec.ipam, a JSON string"),
    **dict.fromkeys(("perNodeBlockSize", "exclusions"), "the spec of an IPPool"),
}

_WRITTEN = ("creationTimestamp", "generation", "resourceVersion", "uid", "managedFields", "selfLink", "ownerReferences")
_METADATA = {
    "labels": "labels belong to the cluster; no variable sets them",
    "annotations": "annotations belong to the cluster; no variable sets them",
    **dict.fromkeys(_WRITTEN, "the API server writes it"),
    "finalizers": "controllers write it",
    "namespace": "each object of the collection has its own place",
}
# In fields that decide which resources pods can request.
_POOLS = ("List[", "resourceName", "numVfs", "nicSelector")


class Page:
    """lines: mappings with source, object, field, verdict (above), was, became, why (may be empty)."""

    def __init__(self, content: dict, source: str, findings: list[Finding]):
        self.content = copy.deepcopy(content)
        self.source = source
        self.name = content["metadata"]["name"]
        self.object = f"{content.get('kind')} {self.name}"
        self.lines: list[dict] = []
        self._findings = findings
        self._said: set[tuple] = {("apiVersion",), ("kind",), ("metadata", "name")}

    def get(self, *path):
        value = self.content
        for key in path:
            there = isinstance(value, dict) and key in value
            there = there or (isinstance(value, list) and isinstance(key, int) and key < len(value))
            if not there:
                return None
            value = value[key]
        return value

    def has(self, *path) -> bool:
        parent = self.get(*path[:-1]) if path[:-1] else self.content
        return isinstance(parent, dict) and path[-1] in parent

    def put(self, path: tuple, value) -> None:
        """Replaces a string by its parsed value, so that the fields in it are accounted for too."""
        self.get(*path[:-1])[path[-1]] = value

    def say(self, path: tuple, verdict: str, became: str = NOTHING, why: str = "", was=None) -> None:
        """Adds a line about a field and everything below it."""
        self._said.add(path)
        shown = was if was is not None else short(self.get(*path))
        self.lines.append(line(self.source, self.object, dotted(path), verdict, shown, became, why))

    def refuse(self, path: tuple, wanted: str, seen: str, next_step: str) -> None:
        """A problem with a field, for which nothing is written."""
        if path not in self._said:
            self.say(path, WRONG, why="see the problem")
        field = f" {dotted(path)}" if path else ""
        self._findings.append(Finding(f"{self.object}{field}", wanted, seen, next_step))

    def cover(self, *paths: tuple) -> None:
        """Fields whose values another line shows."""
        self._said.update(paths)

    def leave(self, path: tuple, known: dict) -> None:
        """Fields below a path that are not taken. known: {field: why}"""
        for field, why in known.items():
            if self.has(*path, field) and (*path, field) not in self._said:
                self.say((*path, field), LEFT_OUT, why=why)

    def finish(self) -> None:
        """Reports every field without a line."""
        for path, known in ((("metadata",), _METADATA), ((), {"status": "the operator writes it"})):
            self.leave(path, known)
        for path in _leaves(self.content):
            if not any(path[: len(said)] == said for said in self._said):
                place = next((f"{one} belongs to {_BELONGS[one]}" for one in path if one in _BELONGS), "")
                why = place or "no field of this name is known here; check whether it belongs elsewhere"
                self.say(path, UNKNOWN, why=why)
                if any(word in f"{path} {self.get(*path)}" for word in ("configList", "resourceList")):
                    step = place or "correct the names of the fields above it"
                    self.refuse(path, "resources in the config of their device plugin", "resources here", step)


def line(*values: str) -> dict:
    return dict(zip(("source", "object", "field", "verdict", "was", "became", "why"), values))


def template(value) -> bool:
    """Whether Ansible would take a text for an expression."""
    return isinstance(value, str) and any(mark in value for mark in ("{{", "{%", "{#"))


def _leaves(value, path: tuple = ()):
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found = False
    for key, inner in items:
        found = True
        yield from _leaves(inner, (*path, key))
    if not found and path:
        yield path


def dotted(path: tuple) -> str:
    text = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in path)
    return text.lstrip(".") or "the whole object"


def short(value, most: int = 90) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    text = " ".join(text.split())
    return text if len(text) <= most else f"{text[: most - 3]}..."


def explanation(lines: list[dict]) -> str:
    blocks, last = [], None
    for line in lines:
        head = f"{line['object']}  ({line['source']})"
        if head != last:
            blocks.append(("\n" if blocks else "") + head)
            last = head
        lead = f"  {line['verdict']:<10}"
        blocks.append(core_text.wrapped(lead, f"{line['field']}: {line['was']} -> {line['became']}"))
        if line["why"]:
            blocks.append(core_text.wrapped(" " * len(lead), line["why"]))
    left = [
        line for line in lines if line["verdict"] in (LEFT_OUT, UNKNOWN) and not line["field"].startswith("metadata")
    ]
    if left:
        pools = sum(any(word in line["field"] for word in _POOLS) for line in left)
        blocks.append(f"\nnot taken: {len(left)} fields, {pools} of them of resources that pods request")
        blocks += [core_text.wrapped("  ", f"{line['object']}, {line['field']}: {line['why']}") for line in left]
    return "\n".join(blocks)
