"""The host at hand in a minute: what its CPU spends on issuing ops, and the specification that follows."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import geometric_mean

from rooflinekit.calibrate.bench.plan import Case
from rooflinekit.calibrate.bench.record_file import Head, Measurement, Recorded
from rooflinekit.calibrate.bench.session import Timer
from rooflinekit.calibrate.hosts.draft import costs_of, host_of
from rooflinekit.calibrate.hosts.ops import ISSUED, ISSUED_BACKWARD
from rooflinekit.calibrate.local_hardware.hardware import Kind
from rooflinekit.errors import MeasureError
from rooflinekit.hardware.host import Host
from rooflinekit.hardware.specs import load_host

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
    return geometric_mean([here / there for here, there in pairs if here != there and here > 0] or [1.0])
