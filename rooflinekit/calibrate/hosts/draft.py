"""What was measured beside kernels: medians, the host specification that follows from them, and that of this host."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from rooflinekit.calibrate.bench.plan import Case
from rooflinekit.calibrate.bench.record_file import Head, Measurement, Recorded, Timer
from rooflinekit.calibrate.bench.samples import Summary, summarize
from rooflinekit.calibrate.hosts.ops import HOST_OPS, ISSUED, ISSUED_BACKWARD, steady
from rooflinekit.calibrate.local_hardware.hardware import Kind
from rooflinekit.errors import MeasureError
from rooflinekit.hardware.host import Host
from rooflinekit.hardware.specs import load_host

_DIGITS = 3
_COPIES = {"h2d_pageable": "copy_bandwidth_pageable", "h2d_pinned": "copy_bandwidth_pinned"}


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCost:
    """The CPU time of one case, beside its kernels, over all rounds."""

    case: Case
    summary: Summary
    state: Mapping[str, float]  # of the last round

    @property
    def rate(self) -> tuple[float, str] | None:
        """What passes in a second, and its unit: bytes of a copy or a collective, FLOP of a product; else None."""
        size = self.case.sizes
        family = HOST_OPS[self.case.op].family
        if family == "rate":
            return 2.0 * size["m"] * size["n"] * size["k"] / self.summary.median, "flop/s"
        return (size["bytes"] / self.summary.median, "byte/s") if "bytes" in size else None


def costs_of(recorded: Recorded) -> tuple[HostCost, ...]:
    """Every case beside kernels that could be measured, in the order of `HOST_OPS`, smaller sizes first."""
    order, found = list(HOST_OPS), []
    for parts in recorded.by_case():
        case = parts[0].case
        if case.op in HOST_OPS:
            summary = summarize([seconds for part in parts for seconds in steady(case.op, part.seconds)])
            found.append(HostCost(case=case, summary=summary, state=parts[-1].state))
    return tuple(sorted(found, key=lambda cost: (order.index(cost.case.op), sorted(cost.case.sizes.items()))))


def host_of(costs: Iterable[HostCost], base: Host, name: str, *, gpu: bool, source: str) -> Host | None:
    """A host with what was measured instead of `base`'s values; None where no issue cost was measured.

    gpu: whether ops were issued to a GPU. Without one a launch is no part of an op's cost, and `base`'s is added.
    source: what the values that were measured come from.
    """
    seconds = {cost.case.op: cost.summary.median for cost in costs}  # of sizes, the largest
    if "issue_default" not in seconds:
        return None
    launch = 0.0 if gpu else base.launch
    dispatch = {
        family: _rounded(seconds[f"issue_{family}"] + (0.0 if family == "view" else launch))
        for family in ISSUED
        if f"issue_{family}" in seconds
    }
    beside = "" if gpu else f"; on a CPU, so a launch of {base.name} ({launch * 1e6:g} µs) is added"
    values: dict[str, object] = {"dispatch": {**base.dispatch, **dispatch}}
    sources = dict.fromkeys(("launch", "step", "compiled_launch", "guards"), _kept(base))
    missing = ", ".join(name for name in base.dispatch if name not in dispatch)
    sources["dispatch"] = f"{source}{beside}{f'; {missing}: {_kept(base)}' if missing else ''}"
    for field, found in (
        ("backward_factor", _backward_factor(seconds, launch)),
        ("launch_latency", _launch_latency(seconds)),
        ("sync", seconds.get("sync")),
        ("graph_launch", max(0.0, seconds["launch_graph"] - base.launch) if "launch_graph" in seconds else None),
    ):
        sources[field] = source if found is not None else _kept(base)
        if found is not None:
            values[field] = _rounded(found)
    copies = {_COPIES[cost.case.op]: cost.rate for cost in costs if cost.case.op in _COPIES}
    values |= {field: _rounded(rate[0]) for field, rate in copies.items() if rate}
    sources["copies"] = (f"copies to the GPU: {source}; DRAM: {_kept(base)}") if copies else _kept(base)
    return base.replace(name=name, description=f"Draft, measured in part: {source}", **values, sources=sources)


def _kept(base: Host) -> str:
    return f"that of {base.name}, not measured"


def _backward_factor(seconds: Mapping[str, float], launch: float) -> float | None:
    """The median over families of an op from autograd's engine relative to one from Python."""
    pairs = [(f"issue_{family}_backward", f"issue_{family}") for family in ISSUED_BACKWARD]
    both = [(seconds[back], seconds[forth]) for back, forth in pairs if {back, forth} <= seconds.keys()]
    ratios = [(back + launch) / (forth + launch) for back, forth in both]
    return statistics.median(ratios) if ratios else None


def _launch_latency(seconds: Mapping[str, float]) -> float | None:
    """What is left of a call on an idle GPU besides issuing it, its kernel, and the wait."""
    parts = ("issue_default", "sync", "graph_node")
    if not {"launch_stream", *parts} <= seconds.keys():
        return None
    return max(0.0, seconds["launch_stream"] - sum(seconds[part] for part in parts))


def _rounded(value: float) -> float:
    return float(np.format_float_scientific(value, precision=_DIGITS - 1))


# The host at hand in a minute: what its CPU spends on issuing ops.


BASE = "generic-server"  # of which the times are that nothing measures, as much faster or slower as those measured
SPREAD = 0.1  # of times that were measured on the very host: from one minute to another
_WARMUP, _SAMPLES, _PRECISION = 20, 60, 0.01
_COPIED = 64 * 2**20  # bytes
_NODES = 32  # of a CUDA graph
_FAMILIES_OF_A_STEP = tuple(family for family in ISSUED if family != "optimizer")


def host_cases(kind: Kind) -> tuple[Case, ...]:
    """What is measured: issuing an op of each family, by autograd too, and on a GPU launches, waits and copies."""
    names = [*(f"issue_{family}" for family in ISSUED), *(f"issue_{family}_backward" for family in ISSUED_BACKWARD)]
    threads = 1 if kind == "cpu" else 0
    found = [Case(op=name, dtype="fp32", sizes={}, threads=threads) for name in names]
    if kind == "cuda":
        found += [Case(op=name, dtype="fp32", sizes={}) for name in ("sync", "launch_stream")]
        found += [Case(op=name, dtype="fp32", sizes={"nodes": _NODES}) for name in ("launch_graph", "graph_node")]
        found += [Case(op=f"h2d_{way}", dtype="fp32", sizes={"bytes": _COPIED}) for way in ("pageable", "pinned")]
    return tuple(found)


def measure_host(
    kind: Kind, timer: Timer, name: str, *, budget_s: float = 60.0, progress: Callable[[str], None] = lambda name: None
) -> Host:
    """The specification of the host at hand: what was measured of it, and what follows for the rest.

    Times that nothing measures here (modules, compiled steps, graphs) are those of `generic-server`, on a GPU's host
    times how much slower the ops are that were measured. Raises MeasureError where none could be within the budget.
    """
    start = time.monotonic()
    measured: list[Measurement] = []
    for case in host_cases(kind):
        if measured and time.monotonic() - start > budget_s:
            break
        progress(case.op)
        measured.append(timer.time(case, turn=0, warmup=_WARMUP, samples=_SAMPLES, precision=_PRECISION))
    head = Head(device=name, plan="host", digest="", units=len(measured), environment=timer.environment())
    costs = costs_of(Recorded(head=head, measurements=tuple(measured), finished=True))
    source = "rooflinekit measure --host-only"
    base = load_host(BASE)
    first = host_of(costs, base, name, gpu=kind == "cuda", source=source)
    if first is None:
        why = next((one.note for one in measured if one.note), f"nothing in {budget_s:g} s")
        raise MeasureError(f"host of {name}: no op could be timed: {why}")
    # without a GPU the ops' times are of other work: no launch, no memory of a device
    times = slowness(first, base) if kind == "cuda" else 1.0
    scaled = base.scaled(times, f"{BASE} times {times:.2g}" if kind == "cuda" else BASE)
    found = host_of(costs, scaled, name, gpu=kind == "cuda", source=source)
    assert found is not None
    kept = f"that of {scaled.name}{', as the ops are that were measured' if kind == 'cuda' else ', not measured'}"
    unmeasured = ("module", "record", "compiled_call", "guard", "graph_entry")
    sources = {
        **found.sources,
        **dict.fromkeys(unmeasured, kept),
        "spread": "stated: a host's times differ by a tenth from one minute to another",
    }
    return found.replace(spread=SPREAD, sources=sources)


def slowness(host: Host, base: Host) -> float:
    """How many times slower a host issues ops than another: geometric mean over the families of a step."""
    pairs = [(host.dispatch_s(family), base.dispatch_s(family)) for family in _FAMILIES_OF_A_STEP]
    return statistics.geometric_mean([here / there for here, there in pairs if here != there and here > 0] or [1.0])
