"""What a plan measures beside kernels: the CPU's work, launches, copies, collectives, rates over time.

The time model's formula for kernels does not apply to them: they stand in a campaign's file under families of their
own, and are left out of its tables and of the fit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from rooflinekit.calibrate.campaigns.operators import OPS, MeasuredOp

#: Families of the CPU's issue costs, as host specifications name them.
ISSUED = ("default", "convolution", "matmul", "attention", "normalization", "optimizer", "view")
#: Those whose gradient autograd issues as one op.
ISSUED_BACKWARD = ("default", "convolution", "matmul", "normalization")
BACKENDS = ("gloo", "nccl")
COLLECTIVES = ("all_reduce", "all_gather", "broadcast")


@dataclass(frozen=True, slots=True, kw_only=True)
class HostOp(MeasuredOp):
    """One thing to measure: its family, its sizes, and what its seconds are."""

    meaning: str


_RATE = ("m", "n", "k", "milliseconds")

HOST_OPS: Mapping[str, HostOp] = MappingProxyType(
    {
        **dict.fromkeys(
            (f"issue_{family}" for family in ISSUED),
            HostOp(family="issue", meaning="CPU time of a call, without waiting for it"),
        ),
        **dict.fromkeys(
            (f"issue_{family}_backward" for family in ISSUED_BACKWARD),
            HostOp(family="issue", meaning="CPU time of an op that autograd issues"),
        ),
        "launch_stream": HostOp(family="launch", meaning="from a call on an idle GPU to its end, seen by the CPU"),
        "launch_graph": HostOp(family="launch", meaning="CPU time of launching a CUDA graph", needed=("nodes",)),
        "graph_node": HostOp(family="launch", meaning="GPU time of a small kernel in a CUDA graph", needed=("nodes",)),
        "sync": HostOp(family="sync", meaning="waiting for an idle GPU"),
        "item": HostOp(family="sync", meaning="reading a number that is computed"),
        **{
            f"{way}_{memory}": HostOp(family="transfer", meaning=f"{words}, {memory} memory", needed=("bytes",))
            for way, words in (("h2d", "host to device"), ("d2h", "device to host"))
            for memory in ("pageable", "pinned")
        },
        **{
            f"{backend}_{name}": HostOp(
                family="collective", meaning=f"{name} over {backend}", needed=("bytes",), optional=("ranks",)
            )
            for backend in BACKENDS
            for name in COLLECTIVES
        },
        "burst": HostOp(family="rate", meaning="a product for so long, after a rest", needed=_RATE),
        "sustained": HostOp(family="rate", meaning="a product again and again for so long", needed=_RATE),
    }
)

#: With those that are fitted.
ALL_OPS: Mapping[str, MeasuredOp] = MappingProxyType({**OPS, **HOST_OPS})


def steady(op: str, seconds: tuple[float, ...]) -> tuple[float, ...]:
    """The samples that count: of a sustained rate, those of its second half, when clocks have settled."""
    return seconds[len(seconds) // 2 :] if op == "sustained" else seconds
