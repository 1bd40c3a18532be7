# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""`explain`: one line per network card and pool: whether the card is in, or why not. Also reads captures."""

from __future__ import annotations

import base64
import os
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

from . import allocation, pools
from .config import Config
from .hca import Tree
from .hca.facts import gather


def explain(config: Config, root: str) -> list[str]:
    tree = Tree(root)
    found = pools.discover(tree, pools.Wanted(any(pool.extra.pKeys for pool in config.pools)))
    # The library knows more about a Mellanox card without RDMA: which module is blocked, and by which file.
    facts = gather(tree, subset=["pci"])["cards_without_rdma"]
    reasons = {card["address"]: f"{card['reason']} {card['next_step']}" for card in facts}
    answer = []
    if found.exclusive:
        answer.append("node: RDMA netns mode exclusive, all devices are Unhealthy (wanted: shared)")
    if "rdma_cm" not in found.common:
        answer.append("node: no /dev/infiniband/rdma_cm: load rdma_ucm (modprobe rdma_ucm)")
    for pool in config.pools:
        chosen = pools.members(pool, found)
        states = {
            hca.name: pools.hca_healthy(pool.health, [port.state == pools.ACTIVE for port in hca.ports])
            for hca in chosen
        }
        offer = allocation.offer(pool, chosen, states, found.common, found.exclusive)
        answer.append(f"pool {pool.resource}: {offer.count} devices, {offer.healthy} healthy, {len(chosen)} HCAs")
        answer += [f"  {text}" for text in [pools.moved(pool, found)] if text]
        for hca in found.hcas:
            out = pools.judge(pool, hca, found.common)
            verdict = f"out: {out.text}" if out else f"in: {_ports(hca)}"
            answer.append(f"  {hca.label}: {verdict}")
        answer += [f"  {card.label}: out: {reasons.get(card.address, card.reason)}" for card in found.cards]
    if not found.hcas and not found.cards:
        answer.append("node: no network card on PCI and no RDMA device")
    return answer


def _ports(hca: pools.Hca) -> str:
    return ", ".join(f"port {port.number} {port.state or 'unreadable'}" for port in hca.ports) or "no ports"


class NoCapture(ValueError):
    """The file cannot be read as a captured node; the text says why."""


def load(path: str) -> dict[str, Any]:
    try:
        import yaml  # not a dependency of the plugin: only captured files need it
    except ImportError:
        raise NoCapture(f"{path}: reading a captured file needs PyYAML; pass a folder, or pip install PyYAML") from None
    try:
        with open(path, encoding="utf-8") as file:
            captured = yaml.safe_load(file)
    except OSError as error:
        raise NoCapture(f"{path}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise NoCapture(f"{path}: not valid YAML: {str(error).splitlines()[0]}") from None
    if not isinstance(captured, Mapping) or not isinstance(captured.get("files"), Mapping):
        raise NoCapture(f"{path}: not a captured node: wanted a mapping with the key files")
    return dict(captured)


def lay_out(captured: Mapping[str, Any], target: pathlib.Path) -> None:
    """Write the plugin's input from a captured node below target: links, files and folders."""
    # Links to folders come before the paths below them.
    for path, goal in sorted(_leaves(captured.get("links") or {}), key=lambda leaf: leaf[0].count("/")):
        os.symlink(goal, _place(target, path))
    for path in captured.get("directories") or ():
        _place(target, path).mkdir(exist_ok=True)
    for path, content in _leaves(captured.get("files") or {}):
        _place(target, path).write_text(str(content))
    for path, content in _leaves(captured.get("binary") or {}):
        _place(target, path).write_bytes(base64.b64decode(content))
    # An unreadable file becomes a folder here, which cannot be read either. Repeated files (GID tables) are not needed.
    for path, _error in _leaves(captured.get("errors") or {}):
        os.makedirs(_place(target, path), exist_ok=True)


def _leaves(section: Mapping[str, Any], folder: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in section.items():
        path = f"{folder}/{name}" if folder else str(name)
        if isinstance(value, Mapping):
            yield from _leaves(value, path)
        else:
            yield path, value


def _place(target: pathlib.Path, path: str) -> pathlib.Path:
    """Where a node path lies below target; absolute links resolve inside target, not on this machine."""
    if ".." in pathlib.PurePosixPath(path).parts:
        raise NoCapture(f"{path}: wanted a plain absolute path")
    parts = list(pathlib.PurePosixPath(path).parts[1:])
    real = target
    for part in parts[:-1]:
        step = real / part
        if step.is_symlink():
            goal = os.readlink(step)
            base = target if goal.startswith("/") else real
            step = pathlib.Path(os.path.normpath(base / goal.lstrip("/")))
            if os.path.commonpath([step, target]) != str(target):
                raise NoCapture(f"{path}: a link points out of the captured tree")
        real = step
    real.mkdir(parents=True, exist_ok=True)
    return real / parts[-1]
