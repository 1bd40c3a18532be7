# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""ResourceClaims: the scheduler's allocation and the prepared devices. Pure; objects of the API are input."""

from __future__ import annotations

import json
import re
from typing import Any, Callable, NamedTuple, Optional

from .devices import DRIVER

# A UID becomes part of a file name. The API server's are UUIDs; names of both kinds are DNS subdomains.
_UID = re.compile(r"[0-9A-Za-z][0-9A-Za-z-]{0,63}\Z")
_SHOWN = 80
# A label or a subdomain, which becomes part of paths.
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?\Z")
_CLAIM_OF_POD = "resource.kubernetes.io/pod-claim-name"
# The opaque parameters of a claim whose pod gets an interface of each allocated rail.
NETWORK = {"apiVersion": f"{DRIVER}/v1", "kind": "Network"}


class Refused(Exception):
    """Why a claim cannot be prepared: object, wanted, seen, next step. The kubelet shows it as the pod's event."""


class Key(NamedTuple):
    """The claim that the kubelet means."""

    namespace: str
    name: str
    uid: str

    @property
    def text(self) -> str:
        return f"{shown(self.namespace)}/{shown(self.name)}"


class Result(NamedTuple):
    """A device that was allocated. share: distinguishes allocations of one device. requests: none means all.

    network: whether the pod also gets an interface of the device's rail.
    """

    device: str
    pool: str
    requests: tuple[str, ...] = ()
    share: Optional[str] = None
    network: bool = False


class Prepared(NamedTuple):
    """A device in a container. files: character devices; env: for the container's libraries; network: of its rail, if
    the claim requests it.
    """

    result: Result
    hca: str
    port: Optional[int] = None
    files: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    network: str = ""


class Metadata(NamedTuple):
    """What containers can read about a claim's devices. folder: below theirs; documents: (request, text) pairs."""

    folder: str = ""
    documents: tuple[tuple[str, str], ...] = ()


class Record(NamedTuple):
    """A prepared claim. pod: uid of the pod that gets its networks; empty without networks."""

    key: Key
    devices: tuple[Prepared, ...] = ()
    pod: str = ""
    metadata: Metadata = Metadata()


def shown(text: Any) -> str:
    """Foreign text for a message: short, one line."""
    plain = str(text)
    short = plain if len(plain) <= _SHOWN else f"{plain[:_SHOWN]}..."
    return short if short.isprintable() else short.encode("unicode_escape", "backslashreplace").decode("ascii")


def valid_uid(uid: str) -> bool:
    return bool(_UID.match(uid))


def check(key: Key) -> None:
    """Refused for anything that cannot be a claim."""
    if not valid_uid(key.uid):
        raise Refused(f'claim {key.text}: uid "{shown(key.uid)}" is not one: wanted letters, digits and -, at most 64')
    if not key.name or not key.namespace:
        raise Refused(f"claim {key.uid}: namespace or name is empty")


def results(claim: Any, key: Key, node: str) -> tuple[Result, ...]:
    """Our devices in a claim's allocation. Refused if it is another claim, not allocated, or not for this node."""
    uid = _at(claim, "metadata", "uid")
    if uid != key.uid:
        raise Refused(
            f"claim {key.text}: the kubelet wants uid {key.uid}, the API server has {shown(uid)}: it was deleted and "
            "recreated; delete the pod that uses the old one"
        )
    allocation = _at(claim, "status", "allocation")
    listed = _at(allocation, "devices", "results")
    if not isinstance(listed, list):
        raise Refused(f"claim {key.text}: it is not allocated; the scheduler does that for the pod that uses it")
    why = ended(claim, key)
    if why:
        raise Refused(f"claim {key.text}: {why}; the kubelet asks again for a pod that holds it")
    asking = _asking(allocation, key)
    found = tuple(_result(one, key, node, asking) for one in _ours(listed))
    if not found:
        raise Refused(f"claim {key.text}: no device of {DRIVER} is allocated to it")
    return found


def ended(claim: Any, key: Key, before: Optional[tuple[Result, ...]] = None) -> str:
    """Why no pod uses a claim any more that was, or will be, prepared; empty while one does. before: its devices."""
    if _at(claim, "metadata", "uid") != key.uid:
        return "it was deleted and recreated"
    if not _at(claim, "status", "reservedFor"):
        return "it is being deleted" if _at(claim, "metadata", "deletionTimestamp") else "it is reserved for no pod"
    ours = _ours(_listed(claim, "status", "allocation", "devices", "results"))
    now = [(_at(one, "device"), _at(one, "pool"), _at(one, "shareID")) for one in ours]
    moved = before is not None and now != [(one.device, one.pool, one.share) for one in before]
    return "other devices are allocated to it" if moved else ""


def pod(claim: Any, key: Key) -> str:
    """UID of the one pod that a claim was made for. Refused for a claim that other pods can use too, because the
    kubelet does not report them.
    """
    references = _listed(claim, "metadata", "ownerReferences")
    owners = [_at(owner, "uid") for owner in references if _at(owner, "kind") == "Pod"]
    users = [_at(user, "uid") for user in _listed(claim, "status", "reservedFor")]
    if len(owners) == 1 and users == owners and valid_uid(str(owners[0])):
        return str(owners[0])
    raise Refused(
        f"claim {key.text}: it asks for a network, which only one pod can have: wanted a claim that Kubernetes created "
        f"for its pod, seen owners {shown(owners)} and users {shown(users)}; use a ResourceClaimTemplate in the pod "
        "(resourceClaimTemplateName)"
    )


def metadata(claim: Any, key: Key, attributes: list[dict[str, Any]]) -> Metadata:
    """The claim's device metadata (KEP-5304), with attributes of each of our results; none for odd names.

    Source: k8s.io/dynamic-resource-allocation/api/metadata of 1.36 and 1.37; each version is a document.
    """
    in_pod = _at(claim, "metadata", "annotations", _CLAIM_OF_POD)
    devices: dict[str, list[Any]] = {}
    for one, known in zip(_ours(_listed(claim, "status", "allocation", "devices", "results")), attributes):
        row = {"driver": DRIVER, "pool": one["pool"], "name": one["device"], "attributes": known}
        devices.setdefault(str(_at(one, "request")), []).append(row)
    requests = [name.partition("/")[0] for name in devices]
    if not all(_NAME.match(name) for name in (key.name, str(in_pod or "x"), *requests)):
        return Metadata()
    said = {"kind": "DeviceMetadata", "metadata": {"name": key.name, "namespace": key.namespace, "uid": key.uid}}
    said.update({"podClaimName": in_pod} if in_pod else {})
    documents = [{**said, "requests": [{"name": name, "devices": rows}]} for name, rows in devices.items()]
    versions = [f"metadata.resource.k8s.io/{version}" for version in ("v1beta1", "v1alpha1")]
    texts = ["".join(json.dumps({"apiVersion": one, **document}) + "\n" for one in versions) for document in documents]
    folder = f"resourceclaimtemplates/{in_pod}" if in_pod else f"resourceclaims/{key.name}"
    return Metadata(folder, tuple(zip(requests, texts)))


def _ours(listed: list[Any]) -> list[Any]:
    """An allocation's results for this driver."""
    return [one for one in listed if _at(one, "driver") == DRIVER]


def _result(one: Any, key: Key, node: str, asking: Callable[[str], bool]) -> Result:
    pool, device, request = (_at(one, name) for name in ("pool", "device", "request"))
    if not all(isinstance(value, str) and value for value in (pool, device)):
        raise Refused(f"claim {key.text}: an allocated device has no pool or name: {shown(one)}")
    if pool != node:
        raise Refused(
            f"claim {key.text}: device {shown(device)} is in pool {shown(pool)}, this node's is {node}; is -node-name "
            "that of the Node object?"
        )
    share = _at(one, "shareID")
    # A request with alternatives is allocated as request/alternative; pods refer to the request.
    requests = (request.partition("/")[0],) if isinstance(request, str) and request else ()
    return Result(device, pool, requests, share if isinstance(share, str) else None, asking(str(request)))


def _asking(allocation: Any, key: Key) -> Callable[[str], bool]:
    """Whether a request asks for the network of its rail, in the claim or its DeviceClass. Refused for unknown
    parameters, because someone relies on them.
    """
    asking: set[Optional[str]] = set()
    for one in _listed(allocation, "devices", "config"):
        if _at(one, "opaque", "driver") != DRIVER:
            continue
        given = _at(one, "opaque", "parameters")
        if given != NETWORK:
            raise Refused(
                f"claim {key.text}: wanted no opaque parameters for {DRIVER}, or {json.dumps(NETWORK)} for the network "
                f"of the rail, seen {shown(json.dumps(given))}; correct the config of that driver in the claim or its "
                "DeviceClass"
            )
        asking.update(map(str, _listed(one, "requests")) if _at(one, "requests") else [None])
    return lambda request: bool(asking & {None, request, request.partition("/")[0]})


def _listed(found: Any, *path: str) -> list[Any]:
    listed = _at(found, *path)
    return listed if isinstance(listed, list) else []


def _at(found: Any, *path: str) -> Any:
    for name in path:
        found = found.get(name) if isinstance(found, dict) else None
    return found
