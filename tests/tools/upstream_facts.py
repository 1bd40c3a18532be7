"""upstream_facts.py record COMPONENT FILE...: what a component's own manifests say, as facts, to compare ours with.

tests/fixtures/upstream/COMPONENT.yml holds them for the locked version, with the place they come from and a reason for
each difference. A fact has a name ("DaemonSet container node: limits.memory") and a plain value; the text of a manifest
is kept nowhere. `record` writes the facts of downloaded manifests into that file, as far as they changed.
"""

from __future__ import annotations

import fnmatch
import json
import pathlib
import sys

import yaml
from ansible_collections.gpufabric.rdma.tests.tools import rendered_objects

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDER = ROOT / "tests/fixtures/upstream"
_POD = (
    *("hostNetwork", "hostPID", "hostIPC", "priorityClassName", "terminationGracePeriodSeconds", "nodeSelector"),
    *("affinity", "securityContext", "automountServiceAccountToken", "runtimeClassName", "dnsPolicy"),
)
_PROBES = ("startupProbe", "livenessProbe", "readinessProbe")


# --- facts of objects -------------------------------------------------------------------------------------------------


def facts(objects: list[dict], names: dict[str, str] | None = None) -> dict[str, object]:
    """{fact: value} of a component's objects. names: {our container: theirs}, so that both are called the same."""
    found: dict[str, object] = {}
    kinds = [item["kind"] for item in objects]
    for kind in sorted(set(kinds)):
        found[f"objects: {kind}"] = kinds.count(kind)
    for item in objects:
        kind = item["kind"]
        if kind in rendered_objects.WORKLOADS:
            found.update(_workload(item, names or {}))
        elif kind in ("Role", "ClusterRole"):
            found.update(_rules(item))
        elif kind == "CustomResourceDefinition":
            found.update(_definition(item))
        elif kind == "ConfigMap":
            found.update(_data(item))
        elif kind == "Namespace":
            for label, value in (item["metadata"].get("labels") or {}).items():
                found[f"Namespace: label {label}"] = value
    return found


def _workload(item: dict, names: dict) -> dict:
    kind, spec, pod = item["kind"], item["spec"], rendered_objects.pod_of(item)
    found: dict[str, object] = {f"{kind}: selector": spec["selector"]["matchLabels"]}
    for key in ("replicas", "updateStrategy", "strategy"):
        if spec.get(key) not in (None, {"type": "RollingUpdate"}):  # which is what Kubernetes does without
            found.update(_flat(f"{kind}: {key}", spec[key]))
    for key in _POD:
        if pod.get(key) not in (None, {}, ""):
            found.update(_flat(f"{kind}: {key}", pod[key]))
    found[f"{kind}: service account"] = bool(pod.get("serviceAccountName"))
    found[f"{kind}: tolerations"] = sorted(_toleration(one) for one in pod.get("tolerations") or ())
    volumes = {volume["name"]: volume for volume in pod.get("volumes") or ()}
    for key, what in (("initContainers", "init container"), ("containers", "container")):
        for container in pod.get(key) or ():
            called = f"{kind} {what} {names.get(container['name'], container['name'])}"
            found.update({f"{called}: {name}": value for name, value in _container(container, volumes).items()})
    return found


def _container(container: dict, volumes: dict) -> dict:
    found: dict[str, object] = {"image": container["image"].partition("@")[0].rpartition(":")[0] or container["image"]}
    words = list(container.get("command") or ())
    if words:
        found["program"] = words[0]
    for word in [*words[1:], *(container.get("args") or ())]:
        if "\n" in word:
            for place, line in enumerate(filter(None, map(str.strip, word.splitlines())), 1):
                found[f"script line {place}"] = line
        else:
            flag, equals, value = word.partition("=")
            found[f"argument {flag}"] = value if equals else True
    for entry in container.get("env") or ():
        source = (entry.get("valueFrom") or {}).get("fieldRef")
        found[f"environment {entry['name']}"] = f"the pod's {source['fieldPath']}" if source else entry.get("value")
    for port in container.get("ports") or ():
        found[f"port {port['containerPort']}"] = port.get("protocol", "TCP")
    if container.get("securityContext"):
        found.update(_flat("securityContext", container["securityContext"]))
    for key in ("requests", "limits"):
        for name, value in ((container.get("resources") or {}).get(key) or {}).items():
            found[f"{key}.{name}"] = str(value)
    for key in _PROBES:
        if container.get(key):
            found.update(_flat(key, container[key]))
    for mount in container.get("volumeMounts") or ():
        found[f"mount {mount['mountPath'].rstrip('/') or '/'}"] = _mounted(mount, volumes[mount["name"]])
    return found


def _mounted(mount: dict, volume: dict) -> str:
    if "hostPath" in volume:
        path, kind = volume["hostPath"]["path"].rstrip("/") or "/", volume["hostPath"].get("type")
        said = f"the node's {path}" + (f" ({kind})" if kind else "")
    elif "configMap" in volume:
        said = f"ConfigMap {volume['configMap']['name']}"
        pairs = [f"{item['key']} as {item['path']}" for item in volume["configMap"].get("items") or ()]
        said += f" ({', '.join(pairs)})" if pairs else ""
    else:
        said = ", ".join(sorted(set(volume) - {"name"}))
    more = [mount[key] for key in ("mountPropagation",) if mount.get(key)] + (
        ["read-only"] if mount.get("readOnly") else []
    )
    return ", ".join([said, *more])


def _toleration(one: dict) -> str:
    key = one.get("key") or "any taint"
    value = f"={one['value']}" if one.get("value") else ""
    return f"{key}{value}:{one['effect']}" if one.get("effect") else f"{key}{value}"


def _rules(item: dict) -> dict:
    found: dict[str, set] = {}
    for rule in item["rules"]:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                only = f" {', '.join(rule['resourceNames'])}" if rule.get("resourceNames") else ""
                name = (
                    f"{item['kind']} {item['metadata']['name'].rpartition('-')[2]}: {group or 'core'}/{resource}{only}"
                )
                found.setdefault(name, set()).update(rule["verbs"])
    return {name: sorted(verbs) for name, verbs in found.items()}


def _definition(item: dict) -> dict:
    spec, name = item["spec"], f"{item['kind']} {item['metadata']['name']}"
    found: dict[str, object] = {f"{name}: scope": spec["scope"], f"{name}: kind": spec["names"]["kind"]}
    found[f"{name}: short names"] = sorted(spec["names"].get("shortNames") or ())
    for version in spec["versions"]:
        said = [key for key in ("served", "storage") if version.get(key)]
        said += ["status"] if "status" in (version.get("subresources") or {}) else []
        found[f"{name}: {version['name']}"] = said
        for column in version.get("additionalPrinterColumns") or ():
            found[f"{name}: {version['name']} column {column['name']}"] = column["jsonPath"]
        schema = version["schema"]["openAPIV3Schema"]
        for path, kind in _fields(schema):
            found[f"{name}: {version['name']} {path}"] = kind
    return found


def _fields(schema: dict, path: str = ""):
    """(path, type) of each field below; what Kubernetes itself puts on top of every object is left out."""
    if schema.get("x-kubernetes-preserve-unknown-fields"):
        yield f"{path or '.'}.*", "anything"
    if "additionalProperties" in schema:
        yield from _fields(schema["additionalProperties"], f"{path}.*")
    if "items" in schema:
        yield from _fields(schema["items"], f"{path}[]")
    for name, field in (schema.get("properties") or {}).items():
        if not path and name in ("apiVersion", "kind", "metadata"):
            continue
        needed = " (required)" if name in (schema.get("required") or ()) else ""
        yield f"{path}.{name}", field.get("type", "any") + needed
        yield from _fields(field, f"{path}.{name}")


def _data(item: dict) -> dict:
    found: dict[str, object] = {}
    for key, text in (item.get("data") or {}).items():
        try:
            value = json.loads(text)
        except ValueError:
            value = text
        found.update(_flat(f"ConfigMap {item['metadata']['name']}: {key}", value if value is not None else text))
    return found


def _flat(name: str, value) -> dict:
    """A mapping as one fact a leaf, anything else as it is."""
    if isinstance(value, dict) and value:
        return {leaf: one for key, item in value.items() for leaf, one in _flat(f"{name}.{key}", item).items()}
    return {name: value}


# --- the comparison ---------------------------------------------------------------------------------------------------


def components() -> dict[str, dict]:
    """{component: what its file says}."""
    return {path.stem: yaml.safe_load(path.read_text()) for path in sorted(FOLDER.glob("*.yml"))}


def ours(component: dict) -> dict:
    """The facts of what we apply for it."""
    return facts(rendered_objects.by_source()[component["ours"]["path"]], component["ours"].get("names"))


def differences(theirs: dict, mine: dict) -> dict[str, tuple]:
    """{fact: (theirs, ours)} where they are not the same; None is absent."""
    names = [*theirs, *(name for name in mine if name not in theirs)]
    return {name: (theirs.get(name), mine.get(name)) for name in names if theirs.get(name) != mine.get(name)}


def explained(component: dict, found: dict) -> tuple[dict[str, str], list[str], list[str]]:
    """({difference: its reason}, differences without one, patterns of reasons that match no difference)."""
    reasons, idle = {}, []
    for entry in component.get("reasons") or ():
        for pattern in entry["facts"]:
            matched = [name for name in found if fnmatch.fnmatchcase(name, pattern.replace("[", "[[]"))]
            idle += [] if matched else [pattern]
            for name in matched:
                reasons.setdefault(name, entry["reason"])
    return reasons, [name for name in found if name not in reasons], idle


# --- recording --------------------------------------------------------------------------------------------------------


def record(name: str, files: list[str]) -> None:
    path = FOLDER / f"{name}.yml"
    known = yaml.safe_load(path.read_text())
    objects = [item for file in files for item in yaml.safe_load_all(pathlib.Path(file).read_text()) if item]
    known["facts"] = facts(objects)
    reasons = known.pop("reasons", None)
    path.write_text("---\n" + _dumped(known) + (_dumped({"reasons": reasons}) if reasons else ""))


def _dumped(value) -> str:
    return yaml.safe_dump(value, sort_keys=False, width=160, allow_unicode=True, default_flow_style=None)


if __name__ == "__main__":
    if sys.argv[1:2] != ["record"] or len(sys.argv) < 4:
        sys.exit(__doc__)
    record(sys.argv[2], sys.argv[3:])
