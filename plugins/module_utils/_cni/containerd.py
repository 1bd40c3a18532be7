"""A node's container runtime: the keys of containerd's config.toml that CNI, CDI and test pods depend on.

Pure except `read` and `tools`; standard library only, and Python 3.9 has no TOML parser, so this reads the subset that
such files use: tables, also inline, dotted keys, strings, integers, booleans, arrays of strings.
"""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Iterable
from typing import Optional

from ..hca import Tree

# k3s renders the first two; with flannel-backend none it writes no [cni] table and containerd's defaults apply.
FILES = (
    "/var/lib/rancher/k3s/agent/etc/containerd/config.toml",
    "/var/lib/rancher/rke2/agent/etc/containerd/config.toml",
    "/etc/containerd/config.toml",
)
DEFAULTS = {
    "conf_dir": "/etc/cni/net.d",
    "bin_dirs": ["/opt/cni/bin"],
    "max_conf_num": 1,
    "use_internal_loopback": False,
}
# Mounts of a test pod that runs the node's own tools in the sandbox image, which the node has pinned: the folders of
# programs and libraries, read-only. So the tools match the node's rdma-core and its providers, including DOCA's,
# without a registry or a build for each architecture. The loader's path is compiled into each program (/lib64,
# /lib), so on a merged /usr the links are mounted too.
_FOLDERS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
# Paths of libraries, alternatives of programs, and the list of verbs providers. DOCA has folders in /opt.
_FURTHER = ("/etc/ld.so.cache", "/etc/alternatives", "/etc/libibverbs.d", "/opt/mellanox")
_TABLE = re.compile(r"^\[+\s*(.+?)\s*\]+$")
_ITEM = re.compile(r"""(?:"[^"]*"|'[^']*'|\[[^\]]*\]|\{[^}]*\}|[^,])+""")  # of an inline table
_CODE = re.compile(r"""(?:[^"'#]|"[^"]*(?:"|$)|'[^']*(?:'|$))*""")  # of a line, without its comment
# Tables of the CRI plugin: configuration version 2 and, since containerd 2, version 3.
_CNI = ("plugins.io.containerd.grpc.v1.cri.cni", "plugins.io.containerd.cri.v1.runtime.cni")
_SANDBOX = (
    ("plugins.io.containerd.grpc.v1.cri", "sandbox_image"),
    ("plugins.io.containerd.cri.v1.images.pinned_images", "sandbox"),
)
_CDI = ("plugins.io.containerd.grpc.v1.cri", "plugins.io.containerd.cri.v1.runtime")


def read(tree: Tree) -> tuple[Optional[str], list[str]]:
    """The file that configures containerd, None if it runs with its defaults, and all texts in order.

    k3s runs its own containerd; a distribution's containerd counts only without a configuration from k3s.
    """
    source = next((path for path in FILES if tree.exists(path)), None)
    if source is None:
        return None, []
    texts = [tree.read(source) or ""]
    # Patterns of further files; later files win.
    patterns = tables(texts[0])[""].get("imports")
    for pattern in patterns if isinstance(patterns, list) else []:
        folder, name = os.path.split(pattern if pattern.startswith("/") else f"{os.path.dirname(source)}/{pattern}")
        texts += [
            tree.read(f"{folder}/{entry}") or "" for entry in tree.listdir(folder) if fnmatch.fnmatch(entry, name)
        ]
    return source, texts


def tables(text: str) -> dict[str, dict]:
    """{name of a table without quotes: {key: value}}; the unnamed table is ''. Unknown syntax is skipped."""
    found: dict[str, dict] = {"": {}}
    current = ""
    pending = ""
    for raw in text.splitlines():
        line = pending + _CODE.match(raw)[0].strip()
        pending = ""
        header = _TABLE.match(line)
        key, equals, value = line.partition("=")
        if header and not equals:
            current = re.sub(r"[\"'\s]", "", header[1])
            found.setdefault(current, {})
        elif value.count("[") > value.count("]"):
            pending = line + " "
        elif equals:
            _put(found, current, key, value.strip())
    return found


def _put(found: dict, table: str, key: str, value: str) -> None:
    """One setting. Its key may name a table below the current one, as an inline table does."""
    name = re.sub(r"[\"'\s]", "", f"{table}.{key}" if table else key)
    if value.startswith("{"):
        for item in _ITEM.findall(value[1:-1]):
            inner, _equals, text = item.partition("=")
            _put(found, name, inner, text.strip())
        return
    place, _dot, leaf = name.rpartition(".")
    found.setdefault(place, {})[leaf] = _value(value)


def _value(text: str):
    if text.startswith("["):
        return [first or second for first, second in re.findall(r"\"([^\"]*)\"|'([^']*)'", text)]
    if text[:1] in "\"'" and text:
        return text[1:-1]
    if text in ("true", "false"):
        return text == "true"
    return int(text) if re.fullmatch(r"-?\d+", text) else text


def cni(texts: list[str]) -> dict:
    """{conf_dir, bin_dirs, max_conf_num, use_internal_loopback} as containerd reads them from its files in order."""
    places = {key: [(table, key) for table in _CNI] for key in (*DEFAULTS, "bin_dir")}
    found = {key: _last(texts, places[key], type(default)) for key, default in DEFAULTS.items()}
    directory = _last(texts, places["bin_dir"], str)
    found["bin_dirs"] = found["bin_dirs"] or ([directory] if directory else None)
    return {key: default if found[key] in (None, "") else found[key] for key, default in DEFAULTS.items()}


def tools(tree: Tree) -> dict:
    """image (of every pod's sandbox, which is on each node that runs pods; None if the configuration sets none) and
    mounts: {path in a pod: path on the node}, for folders and files that exist.
    """
    mounts = {path: tree.realpath(path) for path in (*_FOLDERS, *_FURTHER) if tree.exists(path)}
    return {"image": _last(read(tree)[1], _SANDBOX, str), "mounts": mounts}


def cdi(texts: list[str]) -> Optional[bool]:
    """Whether the files switch CDI on or off; None for containerd's default, which is on since 2.0 and off before."""
    return _last(texts, [(table, "enable_cdi") for table in _CDI], bool)


def _last(texts: list[str], places: Iterable[tuple[str, str]], kind: type):
    """The last value of this kind that a file sets in one of these places (table, key); None without one."""
    values = [named.get(table, {}).get(key) for named in map(tables, texts) for table, key in places]
    return next((value for value in reversed(values) if isinstance(value, kind)), None)
