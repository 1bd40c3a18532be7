# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The node's ResourceSlices: which to write, replace and delete, so the pool is complete at one generation. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple, Optional

from . import devices
from .devices import DRIVER, Form

API_VERSION, KIND = "resource.k8s.io/v1", "ResourceSlice"
# Limits of the API: devices in a slice, and in one with any taints.
MOST, MOST_TAINTED = 128, 64

Slice = dict[str, Any]


class Owner(NamedTuple):
    """The Node object, with which its slices go."""

    name: str
    uid: str

    @property
    def reference(self) -> dict[str, Any]:
        return {"apiVersion": "v1", "kind": "Node", "name": self.name, "uid": self.uid, "controller": True}


class Step(NamedTuple):
    """One write. verb: create, replace or delete; name: of an existing slice."""

    verb: str
    name: str
    body: Slice


def chunks(found: list[dict[str, Any]], form: Form) -> list[list[dict[str, Any]]]:
    """The devices of each slice. With taints a slice is small at first, so a port that goes down moves no device."""
    most = MOST_TAINTED if form.taints else MOST
    return [found[start : start + most] for start in range(0, len(found), most)]


def body(owner: Owner, chunk: list[dict[str, Any]], generation: int, count: int) -> Slice:
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"generateName": f"{owner.name}-{DRIVER}-", "ownerReferences": [owner.reference]},
        "spec": {
            "driver": DRIVER,
            "nodeName": owner.name,
            "pool": {"name": owner.name, "generation": generation, "resourceSliceCount": count},
            "devices": chunk,
        },
    }


def canonical(found: Any) -> str:
    """Devices as comparable text: without the time that the API server adds to a taint."""
    listed = found if isinstance(found, list) else []
    plain = [
        {**one, "taints": [{**taint, "timeAdded": None} for taint in one["taints"]]} if one.get("taints") else one
        for one in listed
    ]
    return json.dumps(plain, sort_keys=True)


class Kept:
    """The sent devices as the API server stored them: it silently drops fields of a gate that is off."""

    def __init__(self) -> None:
        self._answers: dict[str, str] = {}

    def note(self, sent: Slice, answer: Slice) -> bool:
        """Store an answer; False if something was dropped."""
        before, after = canonical(_devices(sent)), canonical(_devices(answer))
        if before == after:
            return True
        if len(self._answers) > 64:
            self._answers.clear()
        self._answers[before] = after
        return False

    def same(self, wanted: list[dict[str, Any]], there: Slice) -> bool:
        text = canonical(wanted)
        return canonical(_devices(there)) in (text, self._answers.get(text))


def _devices(found: Slice) -> Any:
    return _spec(found).get("devices")


def _spec(found: Slice) -> dict[str, Any]:
    spec = found.get("spec")
    return spec if isinstance(spec, dict) else {}


def _pool(found: Slice) -> dict[str, Any]:
    pool = _spec(found).get("pool")
    return pool if isinstance(pool, dict) else {}


def generation(seen: Mapping[str, Slice]) -> int:
    return max((int(_pool(one).get("generation") or 0) for one in seen.values()), default=0)


def plan(seen: Mapping[str, Slice], wanted: list[list[dict[str, Any]]], owner: Owner, kept: Kept) -> list[Step]:
    """The writes that make the pool as wanted; none if it is. seen: the node's slices of this driver, by name.

    All slices of a pool have the same generation and count, so a scheduler recognizes a half-written pool. Slices of a
    lower generation do not count; they are deleted last.
    """
    names = sorted(seen)
    latest = generation(seen)
    left = list(names)
    match: dict[int, str] = {}
    for index, chunk in enumerate(wanted):
        name = next((name for name in left if kept.same(chunk, seen[name])), None)
        if name:
            match[index] = name
            left.remove(name)
    whole = len(match) == len(wanted) and not left
    if whole and all(_current(seen[name], latest, len(wanted), owner) for name in names):
        return []
    steps = []
    for index, chunk in enumerate(wanted):
        made = body(owner, chunk, latest + 1, len(wanted))
        usable = [name for name in left if _replaceable(seen[name], owner)]
        name = match.get(index)
        if name and not _replaceable(seen[name], owner):
            left.append(name)
            name = None
        if name is None and usable:
            name = usable[0]
            left.remove(name)
        if name is None:
            steps.append(Step("create", "", made))
            continue
        there = seen[name].get("metadata") or {}
        metadata = {"name": name, "ownerReferences": [owner.reference]}
        if there.get("resourceVersion"):
            metadata["resourceVersion"] = there["resourceVersion"]
        steps.append(Step("replace", name, {**made, "metadata": metadata}))
    return [*steps, *(Step("delete", name, {}) for name in left)]


def _current(there: Slice, latest: int, count: int, owner: Owner) -> bool:
    pool = _pool(there)
    owners = (there.get("metadata") or {}).get("ownerReferences") or []
    return (
        _replaceable(there, owner)
        and pool.get("generation") == latest
        and pool.get("resourceSliceCount") == count
        and any(one.get("uid") == owner.uid for one in owners)
    )


def _replaceable(there: Slice, owner: Owner) -> bool:
    """Driver, pool name and node name of a slice are immutable."""
    spec = _spec(there)
    return (spec.get("driver"), spec.get("nodeName"), _pool(there).get("name")) == (DRIVER, owner.name, owner.name)


def probe(owner: Owner) -> Slice:
    """A slice, for a dry run, with every gated field that we use."""
    policy = {"default": "1", "validRange": {"min": "1", "step": "1"}}
    device = {
        "name": "probe",
        "capacity": {devices.SHARES: {"value": "2", "requestPolicy": policy}},
        "allowMultipleAllocations": True,
        "taints": [{"key": devices.TAINT, "effect": "NoSchedule"}],
    }
    return body(owner, [device], 1, 1)


def form(answer: Slice) -> Form:
    """The probe's fields that the API server kept."""
    listed: Optional[list[Any]] = _devices(answer)
    device = listed[0] if listed else {}
    return Form(shared=bool(device.get("allowMultipleAllocations")), taints=bool(device.get("taints")))
