"""What one end of a bandwidth test can carry: the rate of its link or that of its PCIe slot, whichever is less.

Pure. All rates are in Gb/s, 10**9 bits of payload a second, as perftest counts them.

Sources
- PCIe line coding and packet overhead: PCI Express Base Specification 3.0 (8b/10b up to 5 GT/s, 128b/130b from 8 GT/s;
  a memory write with 64-bit address takes 24 bytes besides its payload: framing and sequence number 4, header 16,
  LCRC 4) and 6.0 (64 GT/s in FLITs of 256 bytes, 236 of them for packets). DLLPs and flow control take a further 8 %:
  R. Neugebauer and others, Understanding PCIe performance for end host networking, SIGCOMM 2018, section 3.
- InfiniBand line coding: InfiniBand Architecture Specification, volume 2 (8b/10b up to QDR, 64b/66b for FDR; what the
  kernel shows for EDR and later is the data rate). Packet headers: volume 1, and Annex A17 (RoCE v2).
"""

import statistics

from ...module_utils._core.text import grouped

# Payload of a memory write. Most root ports allow 256; the facts do not include it.
PAYLOAD = 256
_WRITE_OVERHEAD = 24
_DLLP = 0.92
# RoCE v2 over IPv4: preamble and gap 20, Ethernet 14 and FCS 4, IPv4 20, UDP 8, BTH 12, ICRC 4.
_ROCE_OVERHEAD = 82
# InfiniBand: LRH 8, BTH 12, ICRC 4, VCRC 2.
_IB_OVERHEAD = 26
# The smallest RDMA MTU of today's ports, if the facts do not include it.
_ASSUMED_MTU = {"InfiniBand": 2048, "Ethernet": 1024}
GENERATIONS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}


def wire_gbps(rate_gbps: float, link_layer: str, mtu, rate_text: str = "") -> float:
    """Payload that a link carries: its rate without line coding and packet headers. mtu: RDMA MTU in bytes or None."""
    mtu = mtu or _ASSUMED_MTU.get(link_layer, 1024)
    if link_layer != "InfiniBand":
        return rate_gbps * mtu / (mtu + _ROCE_OVERHEAD)
    return rate_gbps * _ib_coding(rate_text or "") * mtu / (mtu + _IB_OVERHEAD)


def _ib_coding(rate_text: str) -> float:
    """Share of the shown rate that is data: `40 Gb/sec (4X QDR)` counts signals, `100 Gb/sec (4X EDR)` data."""
    grade = rate_text.partition("(")[2].rstrip(")").rpartition(" ")[2]
    return {"SDR": 0.8, "DDR": 0.8, "QDR": 0.8, "FDR": 64 / 66}.get(grade, 1.0)


def usual_rates(carried: dict) -> dict:
    """{(device, link layer): rate in Gb/s} that half of the ports of a kind reach. carried: {label: carries}."""
    rates = grouped(
        ((end["device"], end["link_layer"]), end["rate_gbps"])
        for end in carried.values()
        if end["kind"] == "pci" and isinstance(end["rate_gbps"], (int, float))
    )
    return {kind: statistics.median_high(known) for kind, known in rates.items()}


def end(carries: dict, usual: dict) -> dict:
    """gbit_per_s (None if not meaningful), why (in words), and limits (what keeps this end below its capacity).

    The figure assumes the card's best: a link or slot that trained lower is a fault to report, not a lower goal.
    """
    if carries["override"] is not None:
        return {"gbit_per_s": float(carries["override"]), "why": "matrix_expected_gbit_per_s", "limits": []}
    rate = carries["rate_gbps"]
    if carries["kind"] != "pci" or not isinstance(rate, (int, float)):
        return {"gbit_per_s": None, "why": "a software HCA has no rate", "limits": []}
    limits = []
    best = max(rate, usual.get((carries["device"], carries["link_layer"]), rate))
    if rate < best:
        limits.append(f"the port runs at {rate:g} Gb/s where ports of its kind run at {best:g} Gb/s")
    # The grade in rate_text is that of the port's own rate; no other rate needs one, see _ib_coding.
    text = carries["rate_text"] if rate == best else ""
    link = wire_gbps(best, carries["link_layer"], carries["mtu"], text)
    slot, slot_why = _slot(carries["link"], wire_gbps(rate, carries["link_layer"], carries["mtu"], text), limits)
    why = f"link of {best:g} Gb/s without packet headers"
    if slot is not None and slot < link:
        link, why = slot, slot_why
    return {"gbit_per_s": round(link, 1), "why": why, "limits": limits}


def _slot(link: dict, wire: float, limits: list) -> tuple:
    """(what the slot carries at the card's best, in words); a slot that trained so low that it matters is a limit."""
    best = _of(link.get("max_speed_gts"), link.get("max_width"))
    now = _of(link.get("speed_gts"), link.get("width"))
    if now is not None and best is not None and now < best and now < wire:
        trained = []
        if link["width"] < link["max_width"]:
            trained.append(f"PCIe x{link['width']} instead of x{link['max_width']}")
        if link["speed_gts"] < link["max_speed_gts"]:
            trained.append(f"PCIe link trained down to {link['speed_gts']:g} of {link['max_speed_gts']:g} GT/s")
        limits.append(f"{' and '.join(trained)}, which carries {now:.1f} Gb/s")
    if best is None:
        best, link = now, {"max_speed_gts": link.get("speed_gts"), "max_width": link.get("width")}
    if best is None:
        return None, ""
    generation = GENERATIONS.get(link["max_speed_gts"], "?")
    return best, f"PCIe Gen{generation} x{link['max_width']} with {PAYLOAD} bytes of payload per packet"


def _of(speed, width):
    """Payload that a PCIe link carries in one direction, if known. speed: in GT/s for each lane; width: in lanes."""
    if not (isinstance(speed, (int, float)) and isinstance(width, int) and width > 0):
        return None
    coding = 0.8 if speed <= 5 else 128 / 130 if speed <= 32 else 236 / 256
    return speed * width * coding * _DLLP * PAYLOAD / (PAYLOAD + _WRITE_OVERHEAD)


def pair(test: dict, carried: dict, usual: dict) -> dict:
    """The same for a test: the slower of its two ends, and the limits of both."""
    ends = []
    for role in ("client", "server"):
        side = test[role]
        name = f"{side['host']} {side['hca']}/{side['port']}"
        expected = end(carried[name], usual)
        ends.append({**expected, "limits": [f"{side['host']} {side['hca']}: {limit}" for limit in expected["limits"]]})
    figures = [expected for expected in ends if expected["gbit_per_s"] is not None]
    limits = [limit for expected in ends for limit in expected["limits"]]
    if len(figures) < len(ends):
        return {"gbit_per_s": None, "why": "", "limits": limits}
    least = min(figures, key=lambda expected: expected["gbit_per_s"])
    return {"gbit_per_s": least["gbit_per_s"], "why": least["why"], "limits": limits}
