"""The constants of collectives: unit, meaning, the value before any measurement, and how far kinds of links differ."""

from __future__ import annotations

from rooflinekit.calibrate.fitting.constants import Description

_FITTED = "starting point of the fit"
_STATED = "stated default"


def _d(
    unit: str, meaning: str, start: float, low: float, high: float, spread: float, between: float, source: str
) -> Description:
    return Description(
        unit=unit, meaning=meaning, start=start, low=low, high=high, spread=spread, between=between, source=source
    )


#: Of a kind of link, or of a generation of GPUs. `between`: how far those may be from each other, in log units.
LINK_CONSTANTS: dict[str, Description] = {
    "share": _d("1", "bandwidth that a long message gets, of the link's in one direction",
                0.8, 0.002, 1.0, 0.3, 0.15, _FITTED),
    "ceiling": _d("byte/s", "rate of a long message through the host's memory, where the link would allow more",
                  12e9, 1e8, 1e12, 0.7, 1.0, f"{_FITTED}: what NCCL's source takes PCIe 3 for (graph/topo.h)"),
    "hop": _d("s", "from one device to the next, of an empty message", 1e-6, 1e-8, 1e-3, 0.7, 0.5, _FITTED),
    "chunk": _d("s", "what a piece of a message costs on its way through the devices, beside its bytes",
                5e-6, 1e-9, 1e-3, 0.7, 0.5, _FITTED),
    "start": _d("s", "the kernel's start and end, and the gap before it", 5e-6, 1e-6, 1e-3, 0.5, 0.4, _FITTED),
    "peer_start": _d("s", "more of it where every device sends to every other one",
                     2e-6, 1e-8, 2e-5, 0.7, 0.3, _FITTED),
    "copy_share": _d("1", "rate at which a rank's own part is copied, of DRAM bandwidth",
                     0.3, 0.001, 1.0, 0.5, 0.3, _FITTED),
    "nvls_start": _d("s", "latency of adding up in the switch", 1.5e-5, 1e-6, 2e-4, 0.7, 0.0, _FITTED),
    "nvls_share": _d("1", "bandwidth while the switch adds up, of the link's in one direction",
                     0.65, 0.2, 1.0, 0.3, 0.0, _FITTED),
}  # fmt: skip

LINK_PARTS = ("share", "hop", "chunk")
HOST_PARTS = ("ceiling", "hop", "chunk")  # of those through the host's memory, where the ceiling hides the share
DEVICE_PARTS = ("start", "peer_start", "copy_share")

#: Kinds of links whose bandwidth a datasheet does not say so that kinds could be compared: how far they may be off.
_FAR = {"pcie-host": 1.5, "pcie-sockets": 2.0, "loopback": 2.0}


def between(name: str, of: str) -> float:
    """How far a kind of link, or a generation of devices, may be from the others in this constant, in log units."""
    if of in _FAR or of == "cpu":
        return max(LINK_CONSTANTS[name].between, _FAR.get(of, 2.0))
    return LINK_CONSTANTS[name].between


#: What no campaign measures, by "NAME OF-WHAT": value, standard error relative to it, source.
STATED: dict[str, tuple[float, float, str]] = {
    "share ethernet": (0.75, 0.2, f"{_STATED}: TCP of one stream"),
    "hop ethernet": (1.0e-5, 0.7, f"{_STATED}: NCCL's proxy thread and two copies, beside the network's own latency"),
    "chunk ethernet": (2.0e-5, 0.7, _STATED),
    "share infiniband": (
        0.90,
        0.1,
        f"{_STATED}: 45 of 50 GB/s, as nccl-tests are reported to reach",
    ),
    "hop infiniband": (4.0e-6, 0.7, f"{_STATED}: NCCL's proxy thread, beside the network's own latency"),
    "chunk infiniband": (8.0e-6, 0.7, _STATED),
    "share loopback": (0.05, 0.7, f"{_STATED}; `rooflinekit calibrate --device cpu` measures it"),
    "hop loopback": (2.5e-5, 0.7, f"{_STATED}; `rooflinekit calibrate --device cpu` measures it"),
    "chunk loopback": (1.0e-5, 1.0, f"{_STATED}; `rooflinekit calibrate --device cpu` measures it"),
    "copy_share cpu": (0.02, 0.7, f"{_STATED}; `rooflinekit calibrate --device cpu` measures it"),
    "start cpu": (3.0e-5, 0.7, f"{_STATED}; `rooflinekit calibrate --device cpu` measures it"),
}
