# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""config.json: decoded like upstream, validated in upstream's order, our extensions outside `selectors`."""

from __future__ import annotations

import re
from typing import Any, NamedTuple, Optional

from . import gojson
from .gojson import boolean, integer, listing, nothing, nullable, seconds, struct, text

DEFAULT_INTERVAL = 60
DEFAULT_PREFIX = "rdma"
# Go keeps the interval as nanoseconds in 64 bits.
MAX_INTERVAL = (1 << 63) // 10**9
# The kubelet accepts gRPC messages of 4 MiB. A unit takes an ID of at most 6 digits, its health, and with a topology a
# list of NUMA nodes of 4 bytes each; no known machine has more than eight nodes with HCAs.
_MESSAGE, _UNIT, _TOPOLOGY, _NODE, _NODES = 4 << 20, 21, 2, 4, 8
MAX_DEVICES = 150_000
PROBLEMS_SHOWN = 20

ALLOCATIONS = ("all", "spread", "numa")
TOPOLOGIES = ("none", "auto")
PORTS = ("any", "all", "ignore")
ENVS = ("none", "generic", "nccl", "ucx")
NEEDS = ("required", "optional", "never")
APIS = ("device-plugin", "dra")
TAINTS = ("NoSchedule", "NoExecute")
_FLAPS = 100

KUBELET_SOCKET = "kubelet.sock"

_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?\Z")
_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = re.compile(rf"{_LABEL}(\.{_LABEL})*\Z")
# The module that creates RDMA devices for a network driver's functions.
RDMA_MODULES = {
    "mlx5_core": "mlx5_ib",
    "mlx4_core": "mlx4_ib",
    "ice": "irdma",
    "i40e": "irdma",
    "bnxt_en": "bnxt_re",
    "qede": "qedr",
    "cxgb4": "iw_cxgb4",
    "hns3": "hns_roce_hw_v2",
    "ionic": "ionic_rdma",
    "mana": "mana_ib",
}
# What a selector can match, and how that is written. Link types have Netlink's names (encapType).
_CLOSED = {
    "vendors": (r"[0-9a-f]{4}\Z", "4 lower case digits"),
    "deviceIDs": (r"[0-9a-f]{4}\Z", "4 lower case digits"),
    # Not the modules that create RDMA devices: they bind to no PCI function.
    "drivers": (
        rf"(?!(|mlx[45]|mlx4_en|{'|'.join(RDMA_MODULES.values())}|ib_core|vfio-pci)\Z)",
        "the name in lspci -k, such as mlx5_core",
    ),
    "ifNames": (
        r"(?!mlx[45]_\d+\Z)[^*?[\s:/#]{1,15}\Z",
        "an interface; extraSelectors has patterns, and rdmaDevices for HCAs",
    ),
    "linkTypes": (r"(ether|infiniband|loopback)\Z", "ether or infiniband"),
    "rdmaDevices": (r"[^:/\s]+\Z", "an HCA without a port, such as mlx5_0"),
    "pciAddresses": (
        r"(?!.*[A-Z])([0-9a-f]{,3}[*?[]|[0-9a-f]{4,}:.*([*?[]|\.[0-7]\Z))",
        "lower case, with domain and function, such as 0000:18:00.0",
    ),
}
_PKEY = re.compile(r"(0[xX])?[0-9a-fA-F]{1,4}\Z")


class ConfigError(ValueError):
    """A config that cannot be used; `problems` holds one sentence each, in upstream's order."""

    def __init__(self, problems: list[str]):
        more = len(problems) - PROBLEMS_SHOWN
        shown = problems[:PROBLEMS_SHOWN] + ([f"and {more} more"] if more > 0 else [])
        super().__init__("; ".join(shown))
        self.problems = problems


class Selectors(NamedTuple):
    """OR inside a list, AND between lists; an empty list does not apply."""

    vendors: tuple[str, ...] = ()
    deviceIDs: tuple[str, ...] = ()
    drivers: tuple[str, ...] = ()
    ifNames: tuple[str, ...] = ()
    linkTypes: tuple[str, ...] = ()


class ExtraSelectors(NamedTuple):
    """Ours, with shell patterns; outside `selectors`, where the operator's webhook rejects extra keys."""

    rdmaDevices: tuple[str, ...] = ()
    pciAddresses: tuple[str, ...] = ()
    ifNames: tuple[str, ...] = ()
    numaNodes: tuple[int, ...] = ()
    pKeys: tuple[int, ...] = ()


class CharDevices(NamedTuple):
    """required, optional or never; None: depends on the HCA (see pools.needs)."""

    uverbs: Optional[str] = None
    umad: Optional[str] = None
    issm: Optional[str] = None
    rdma_cm: Optional[str] = None
    gdrdrv: Optional[str] = None


class Health(NamedTuple):
    """ports: which ports must be ACTIVE. A port counts as down after downSeconds, as up again after upSeconds.

    A port that went down `flaps` times within flapSeconds stays down until they have passed; 0: no limit.
    taint: over DRA, the effect of a port that is down, if the cluster has device taints.
    """

    ports: str = "any"
    downSeconds: float = 0.3
    upSeconds: float = 2.0
    taint: str = "NoSchedule"
    flaps: int = 0
    flapSeconds: float = 600.0


class Pool(NamedTuple):
    """One entry of configList: a resource, its number of units, and its HCAs.

    api: device-plugin or dra, None for the default of the mode. rail: the number of its HCAs, for DRA; None: automatic.
    """

    name: str
    prefix: str = DEFAULT_PREFIX
    count: int = 0
    selectors: Selectors = Selectors()
    extra: ExtraSelectors = ExtraSelectors()
    char_devices: CharDevices = CharDevices()
    health: Health = Health()
    allocation: str = "all"
    hcas_per_unit: int = 0
    topology: str = "none"
    env: tuple[str, ...] = ()
    link_up: bool = True
    max_per_container: int = 0
    software: bool = False
    api: Optional[str] = None
    rail: Optional[int] = None

    @property
    def resource(self) -> str:
        """The name pods ask for."""
        return f"{self.prefix}/{self.name}"

    @property
    def socket(self) -> str:
        return f"{self.name}.sock"


class Config(NamedTuple):
    """refused: problems of the entries that a lenient `load` left out."""

    pools: tuple[Pool, ...]
    interval: int = DEFAULT_INTERVAL
    warnings: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()


# Where the content of keys belongs that are in the wrong place, or those of another plugin.
_SRIOV = "the SR-IOV network device plugin's, here it is"
_ELSEWHERE = {
    **{name.lower(): f"here it is extraSelectors.{name}" for name in ExtraSelectors._fields},
    **{name.lower(): f"here it is selectors.{name}" for name in Selectors._fields},
    "resourcelist": f"{_SRIOV} configList",
    "pfnames": f"{_SRIOV} selectors.ifNames",
    "rootdevices": f"{_SRIOV} extraSelectors.pciAddresses",
}
_STRINGS = (listing(text, str), list)
_CHOICE = (text, str)
_SELECTORS = struct(dict.fromkeys(Selectors._fields, _STRINGS))
_EXTRA = struct({**dict.fromkeys(ExtraSelectors._fields, _STRINGS), "numaNodes": (listing(integer, int), list)})
_CHAR_DEVICES = struct(dict.fromkeys(CharDevices._fields, _CHOICE))
_SECONDS = dict.fromkeys(("downSeconds", "upSeconds", "flapSeconds"), (seconds, nothing))
_HEALTH = struct({"ports": _CHOICE, "taint": _CHOICE, "flaps": (integer, int), **_SECONDS})


def _env(decoder: gojson.Decoder, value: Any, before: Any, path: str) -> Any:
    """One word or a list of words."""
    return listing(text, str)(decoder, [value] if isinstance(value, str) else value, [], path)


_ENTRY = struct(
    {
        "resourceName": (text, str),
        "resourcePrefix": (text, str),
        "rdmaHcaMax": (integer, int),
        "devices": _STRINGS,
        "selectors": (_SELECTORS, nothing),
        "extraSelectors": (_EXTRA, nothing),
        "charDevices": (_CHAR_DEVICES, nothing),
        "health": (_HEALTH, nothing),
        "allocation": _CHOICE,
        "hcasPerUnit": (integer, int),
        "topology": _CHOICE,
        "env": (_env, list),
        "linkUp": (nullable(boolean), nothing),
        "maxPerContainer": (integer, int),
        "softwareDevices": (boolean, bool),
        "api": _CHOICE,
        "rail": (nullable(integer), nothing),
    }
)
_DOCUMENT = struct(
    {"periodicUpdateInterval": (nullable(integer), nothing), "configList": (listing(_ENTRY, nothing), list)}
)


def load(data: bytes, strict: bool = False, lenient: bool = False) -> Config:
    """The config in a file's bytes. ConfigError lists every problem; unknown keys are problems only when strict.

    lenient: leave out the entries that only the kubelet would refuse, as long as others remain, like the Go plugin.
    """
    try:
        document, problems, unknown = gojson.decode(_DOCUMENT, data)
    except ValueError as error:
        raise ConfigError([f"not valid JSON: {error}"]) from None
    if problems:
        raise ConfigError(problems)
    places = [(path, _ELSEWHERE.get(path.rpartition(".")[2].lower())) for path in unknown]
    unknown = [f"unknown key {path}" + (f" ({place})" if place else "") for path, place in places]
    warnings = [] if strict else [f"{key}: ignored" for key in unknown]
    problems += unknown if strict else []

    interval = document["periodicUpdateInterval"]
    if interval is None:
        interval = DEFAULT_INTERVAL
    if not 0 <= interval <= MAX_INTERVAL:
        problems.append(
            f'invalid "periodicUpdateInterval" configuration "{interval}": wanted 0 (no periodic update) '
            f"to {MAX_INTERVAL} seconds"
        )
    if not document["configList"]:
        problems.append("no resources configuration found: configList is empty or absent")
    seen: set[str] = set()
    entries = [_Entry(entry or _ENTRY(gojson.Decoder(), None, None, ""), seen) for entry in document["configList"]]
    pools = [entry.pool for entry in entries if not entry.refusals]
    refused = [line for entry in entries for line in entry.refusals] if lenient and pools else []
    problems += [line for entry in entries for line in entry.problems if line not in refused]
    if problems:
        # Something is missing that an unknown key may have been meant for.
        raise ConfigError(problems if strict else problems + unknown)
    warnings += [line for entry in entries for line in entry.warnings]
    return Config(pools=tuple(pools), interval=interval, warnings=tuple(warnings), refused=tuple(refused))


class _Entry:
    """One entry of configList, checked: names, count, selectors, then our extensions.

    refusals: problems that the Go plugin accepts but the kubelet refuses.
    """

    def __init__(self, entry: dict[str, Any], seen: set[str]):
        self.problems: list[str] = []
        self.refusals: list[str] = []
        self.warnings: list[str] = []
        self.name = entry["resourceName"]
        self.prefix = entry["resourcePrefix"] or DEFAULT_PREFIX
        self._names(seen)
        if entry["rdmaHcaMax"] < 0:
            self.problems.append(f"error: Invalid value for rdmaHcaMax < 0: {entry['rdmaHcaMax']}{self._of()}")
        elif entry["rdmaHcaMax"] > MAX_DEVICES:
            self.problems.append(
                f"error: Invalid value for rdmaHcaMax: {entry['rdmaHcaMax']}{self._of()}; the list of devices has to "
                f"fit into one message to the kubelet, which holds {MAX_DEVICES}"
            )
        elif entry["rdmaHcaMax"]:
            self._message(entry)
        else:
            self.warnings.append(f"rdmaHcaMax is 0 or absent: no device is advertised{self._of()}")
        selectors, extra = self._selectors(entry)
        self.pool = Pool(
            name=self.name,
            prefix=self.prefix,
            count=entry["rdmaHcaMax"],
            selectors=selectors,
            extra=extra,
            char_devices=self._char_devices(entry["charDevices"] or {}),
            health=self._health(entry["health"] or {}),
            allocation=self._choice("allocation", entry["allocation"], ALLOCATIONS),
            hcas_per_unit=self._natural("hcasPerUnit", entry["hcasPerUnit"]),
            topology=self._choice("topology", entry["topology"], TOPOLOGIES),
            env=self._envs(entry["env"]),
            link_up=entry["linkUp"] is not False,
            max_per_container=self._natural("maxPerContainer", entry["maxPerContainer"]),
            software=entry["softwareDevices"],
            api=self._choice("api", entry["api"], APIS) if entry["api"] else None,
            rail=None if entry["rail"] is None else self._natural("rail", entry["rail"]),
        )
        if self.pool.hcas_per_unit and self.pool.allocation == "all":
            self._problem("hcasPerUnit", "has a meaning only with allocation spread or numa, this pool has all")

    def _of(self) -> str:
        return f' (resource "{self.name}")' if self.name else ""

    def _refuse(self, text: str) -> None:
        self.problems.append(text)
        self.refusals.append(text)

    def _message(self, entry: dict[str, Any]) -> None:
        """A list of units with their NUMA nodes is longer than one without."""
        nodes = {"numa": 1, "spread": min(max(entry["hcasPerUnit"], 1), _NODES)}.get(entry["allocation"], _NODES)
        most = _MESSAGE // (_UNIT + _TOPOLOGY + _NODE * nodes)
        if entry["topology"] == "auto" and entry["rdmaHcaMax"] > most:
            self.problems.append(
                f"error: Invalid value for rdmaHcaMax: {entry['rdmaHcaMax']}{self._of()}; with topology auto the list "
                f"of devices has to fit into one message to the kubelet, which holds {most}"
            )

    def _problem(self, key: str, text: str) -> None:
        self.problems.append(f'resource "{self.name}": {key} {text}')

    def _names(self, seen: set[str]) -> None:
        name, prefix = self.name, self.prefix
        if not _NAME.match(name):
            reason = (
                "the kubelet wants a letter or digit first and last, and letters, digits, '-', '_' and '.' between; "
                "what stands before a slash is the resourcePrefix"
                if name
                else "resourceName is empty or absent"
            )
            self.problems.append(f'error: resource name "{name}" contains invalid characters: {reason}')
        elif len(name) > 63:
            self._refuse(f'error: resource name "{name}" is too long: {len(name)} characters, the kubelet takes 63')
        elif f"{name}.sock" == KUBELET_SOCKET:
            self._refuse(f'error: resource name "{name}" takes {KUBELET_SOCKET}, which is the kubelet\'s own socket')
        if name in seen:
            self.problems.append(f'error: resource name "{name}" already exists')
        seen.add(name)
        reason = prefix_problem(prefix)
        if reason:
            self._refuse(f'error: resource prefix "{prefix}" of "{name}" {reason}')

    def _selectors(self, entry: dict[str, Any]) -> tuple[Selectors, ExtraSelectors]:
        given = {key: tuple(values) for key, values in (entry["selectors"] or {}).items()}
        more = entry["extraSelectors"] or {}
        devices = entry["devices"]
        extra = self._extra(more)
        if any(given.values()):
            if devices:
                self.problems.append(
                    f'configuration mismatch. Cannot specify both "selectors" and "devices" fields{self._of()}'
                )
        elif devices:
            self.warnings.append(f'"devices" field is deprecated, use "selectors.ifNames" instead{self._of()}')
            given["ifNames"] = tuple(devices)
        elif not any(more.values()):
            self.problems.append(
                'configuration missmatch. neither "selectors" nor "devices" fields exits, it is recommended to use '
                f'the new "selectors" field{self._of()}'
            )
        for key, (pattern, wanted) in _CLOSED.items():
            for value in (given if key in Selectors._fields else more).get(key, ()):
                if not re.match(pattern, value):
                    self.warnings.append(f'{key} "{value}" matches nothing: wanted {wanted}{self._of()}')
        return Selectors(**given), extra

    def _extra(self, more: dict[str, list[Any]]) -> ExtraSelectors:
        keys = more.get("pKeys", [])
        wrong = [key for key in keys if not _PKEY.match(key)]
        if wrong:
            self._problem("extraSelectors.pKeys", f"wants hexadecimal partition keys such as 0x8001, got {wrong}")
        return ExtraSelectors(
            **{name: tuple(values) for name, values in more.items() if name != "pKeys"},
            pKeys=tuple(int(key, 16) for key in keys if key not in wrong),
        )

    def _choice(self, key: str, value: str, choices: tuple[str, ...]) -> str:
        if value and value not in choices:
            self._problem(key, f'wants one of {", ".join(choices)}, got "{value}"')
        return value or choices[0]

    def _natural(self, key: str, value: int) -> int:
        if value < 0:
            self._problem(key, f"wants 0 or more, got {value}")
        return value

    def _char_devices(self, given: dict[str, str]) -> CharDevices:
        for name, value in given.items():
            if value and value not in NEEDS:
                self._problem(f"charDevices.{name}", f'wants one of {", ".join(NEEDS)}, got "{value}"')
        if given.get("uverbs") == "never":
            self._problem("charDevices.uverbs", "never leaves a container nothing to work with")
        return CharDevices(**{name: value or None for name, value in given.items()})

    def _health(self, given: dict[str, Any]) -> Health:
        values = {name: value for name, value in given.items() if value not in (None, "")}
        self._choice("health.ports", given.get("ports", ""), PORTS)
        self._choice("health.taint", given.get("taint", ""), TAINTS)
        if not 0 <= values.get("flaps", 0) <= _FLAPS:
            self._problem("health.flaps", f"wants 0 to {_FLAPS}, got {values['flaps']}")
        return Health(**values)

    def _envs(self, words: list[str]) -> tuple[str, ...]:
        for word in words:
            self._choice("env", word, ENVS)
        return tuple(dict.fromkeys(word for word in words if word not in ("", "none")))


def prefix_problem(prefix: str) -> Optional[str]:
    """Why the kubelet refuses a prefix (v1helper.IsExtendedResourceName); None when it accepts it."""
    if not _SUBDOMAIN.match(prefix):
        return (
            "is not a DNS-1123 subdomain: the kubelet wants lower case letters, digits, '-' and '.', "
            "each part with a letter or digit first and last"
        )
    if prefix.endswith("kubernetes.io"):
        return "ends with kubernetes.io, which the kubelet keeps for Kubernetes' own resources"
    if prefix == "requests" or prefix.startswith("requests."):
        return "begins with requests, which the kubelet keeps for quotas"
    if len(f"requests.{prefix}") > 253:
        return f"is too long: {len(prefix)} characters, the kubelet takes 244"
    return None
