# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The prepared claims on disk: one CDI spec file per claim, replaced atomically, which is also the claim's record.
Beside it is a file of metadata per request, for containers; no runtime reads its suffix.

An annotation has the data that a restart needs besides the containers' devices. Removing its file ends a claim. After a
reboot the folder is empty, because no container runs, and the kubelet prepares again.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
from typing import Any, Optional

from . import cdi
from .claims import Key, Metadata, Prepared, Record, Result, valid_uid
from .devices import DRIVER

CLASS = "rdma-claim"
KIND = f"{cdi.VENDOR}/{CLASS}"
CDI_VERSION = "0.6.0"  # the first with annotations
NAMESPACE, NAME, DEVICES = f"{DRIVER}/namespace", f"{DRIVER}/name", f"{DRIVER}/devices"
# Read by the CNI plugin rdma-claim: the pod and its networks.
POD, NETWORKS = f"{DRIVER}/pod", f"{DRIVER}/networks"
METADATA = f"{DRIVER}/metadata"
# Where a container finds the metadata, by the API that MetadataFileName() and its kin in Kubernetes describe.
CONTAINERS = "/var/run/kubernetes.io/dra-device-attributes"


def file(uid: str) -> str:
    return f"{cdi.VENDOR}_{CLASS}_{uid}.json"


def ids(record: Record) -> list[str]:
    """The fully qualified name of each device of a claim, in its order."""
    return [f"{KIND}={record.key.uid}-{index}" for index in range(len(record.devices))]


def _metadata_file(uid: str, request: str) -> str:
    return f"{file(uid).removesuffix('.json')}_{request}.metadata"


def encode(record: Record, directory: str) -> dict[str, Any]:
    """The containers' devices, one entry each, because a container may use a single request of a claim."""
    devices = []
    for index, device in enumerate(record.devices):
        edits: dict[str, Any] = {
            "deviceNodes": [{"path": path, "hostPath": path, "permissions": "rw"} for path in device.files]
        }
        if device.env:
            edits["env"] = [f"{name}={value}" for name, value in device.env]
        mounts = _mounts(record, index, directory)
        if mounts:
            edits["mounts"] = mounts
        devices.append({"name": f"{record.key.uid}-{index}", "containerEdits": edits})
    # The network's name tells whether the claim asks for one.
    allocated = [[*device.result[:-1], device.hca, device.port, device.network] for device in record.devices]
    said = {NAMESPACE: record.key.namespace, NAME: record.key.name, DEVICES: json.dumps(allocated)}
    if record.metadata.documents:
        said[METADATA] = json.dumps(record.metadata)
    networks = dict.fromkeys(device.network for device in record.devices if device.network)
    if networks:
        said.update({POD: record.pod, NETWORKS: ",".join(networks)})
    return {"cdiVersion": CDI_VERSION, "kind": KIND, "annotations": said, "devices": devices}


def _mounts(record: Record, index: int, directory: str) -> list[dict[str, Any]]:
    """The metadata files of a device: those of its requests that no device before it has."""
    earlier = {request for device in record.devices[:index] for request in device.result.requests}
    folder = f"{CONTAINERS}/{record.metadata.folder}"
    return [
        {
            "hostPath": f"{directory}/{_metadata_file(record.key.uid, request)}",
            "containerPath": f"{folder}/{request}/{DRIVER}-metadata.json",
            "options": ["ro", "bind"],
        }
        for request, _text in record.metadata.documents
        if request in record.devices[index].result.requests and request not in earlier
    ]


def decode(document: Any, uid: str) -> Record:
    """The record in a spec. ValueError, LookupError or TypeError if it is incomplete: damaged or older."""
    annotations, devices = document["annotations"], document["devices"]
    allocated = json.loads(annotations[DEVICES])
    if not devices or len(allocated) != len(devices):
        raise ValueError("the numbers of allocated devices and devices differ")
    prepared = tuple(_prepared(row, device["containerEdits"]) for row, device in zip(allocated, devices))
    pod = _text(annotations[POD]) if any(device.network for device in prepared) else ""
    folder, documents = json.loads(annotations.get(METADATA, '["", []]'))
    metadata = Metadata(_text(folder), tuple((_text(request), _text(text)) for request, text in documents))
    return Record(_key(document, uid), prepared, pod, metadata)


def _prepared(row: list[Any], edits: dict[str, Any]) -> Prepared:
    device, pool, requests, share, hca, port, network = row
    paths = tuple(_text(node["path"]) for node in edits["deviceNodes"])
    kinds = isinstance(requests, list), share is None or isinstance(share, str), port is None or isinstance(port, int)
    if not paths or not all(kinds):
        raise ValueError("a device without files, or an invalid request, share or port")
    result = Result(_text(device), _text(pool), tuple(_text(request) for request in requests), share, bool(network))
    pairs = (_text(pair).partition("=") for pair in edits.get("env", ()))
    env = tuple((name, value) for name, _equals, value in pairs)
    return Prepared(result, _text(hca), port, paths, env, _text(network))


def _key(document: Any, uid: str) -> Key:
    annotations = document["annotations"]
    return Key(_text(annotations[NAMESPACE]), _text(annotations[NAME]), uid)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"wanted text, seen {type(value).__name__}")
    return value


def write(directory: str, record: Record) -> None:
    """Update a claim's files. OSError leaves the old one."""
    for request, text in record.metadata.documents:
        cdi.update(directory, f"{directory}/{_metadata_file(record.key.uid, request)}", text)
    text = json.dumps(encode(record, directory), indent=1) + "\n"
    cdi.update(directory, f"{directory}/{file(record.key.uid)}", text)


def remove(directory: str, uid: str) -> None:
    cdi.remove_file(f"{directory}/{file(uid)}")
    for path in glob.glob(f"{glob.escape(directory)}/{_metadata_file(uid, '*')}"):
        cdi.remove_file(path)


def sweep(directory: str) -> None:
    """Remove what a killed process left: unfinished files, and metadata without a spec."""
    for path in glob.glob(f"{glob.escape(directory)}/{file('*').removesuffix('.json')}"):
        alone = path.endswith(".metadata") and not os.path.exists(f"{path.rpartition('_')[0]}.json")
        if alone or path.endswith(".new"):
            with contextlib.suppress(OSError):
                os.unlink(path)


def load(directory: str) -> tuple[dict[str, Record], dict[str, Optional[Key]]]:
    """({uid: Record}, {uid: Key}): claims with complete files, and others; None if even the claim is unknown.

    OSError if the folder or a file cannot be read.
    """
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return {}, {}
    records: dict[str, Record] = {}
    unknown: dict[str, Optional[Key]] = {}
    for name in sorted(names):
        uid = _uid(name)
        if not uid:
            continue
        with open(f"{directory}/{name}", "rb") as spec:
            data = spec.read()
        document = None
        try:
            document = json.loads(data)
            records[uid] = decode(document, uid)
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            try:
                unknown[uid] = _key(document, uid)
            except (LookupError, TypeError):
                unknown[uid] = None
    return records, unknown


def _uid(name: str) -> Optional[str]:
    """The uid in the name of one of our files; None for any other name."""
    start, end = f"{cdi.VENDOR}_{CLASS}_", ".json"
    uid = name[len(start) : -len(end)] if name.startswith(start) and name.endswith(end) else ""
    return uid if valid_uid(uid) else None
