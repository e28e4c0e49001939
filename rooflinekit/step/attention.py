"""Which attention a step runs where PyTorch has a faster one: why that is excluded, what it costs, what to do."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from rooflinekit.cost.table import price_all
from rooflinekit.ir import keyed
from rooflinekit.ir.graph import Graph
from rooflinekit.ir.op import Op
from rooflinekit.kernels.attention_backends import BACKENDS, Obstacle, backend_of, obstacles, without_obstacles
from rooflinekit.kernels.eager import plain_kernels
from rooflinekit.step.entry import attending, attention_ops
from rooflinekit.step.execution import Execution
from rooflinekit.timing.machine import Machine
from rooflinekit.timing.timings import Timing, time_kernels

_TOLD = 1.05  # times slower, from which a note says so


def attention_notes(graph: Graph, machine: Machine, execution: Execution) -> Iterator[str]:
    """A sentence for each backend that is excluded and faster, or that this GPU will never run."""
    excluded: dict[tuple[str, str, tuple[Obstacle, ...]], list[Op]] = defaultdict(list)
    device, like = machine.device, graph.like
    for op in attention_ops(attending(graph, device, execution), execution):
        before: tuple[Obstacle, ...] = ()
        for name, against in obstacles(op, device, like):
            if against != before:
                excluded[backend_of(op, device, like).name, name, against].append(op)
            before = against
    for (ran, name, against), ops in excluded.items():
        instead = [without_obstacles(op, name, device) for op in ops]
        taken = [op for op in instead if op is not None]
        times = _seconds(ops, graph, machine) / _seconds(taken, graph, machine) if len(taken) == len(ops) else None
        if times is not None and times < _TOLD:
            continue
        why, remedies = " and ".join(one for one, _ in against), "; ".join(one for _, one in against)
        slower = "" if times is None else f", {times:.1f} times slower"
        yield f"attention: {BACKENDS[name].name} is excluded by {why}; {ran} runs{slower}: {remedies}"


def attention_seconds(timings: Iterable[Timing]) -> dict[str, float]:
    """Seconds of each kernel of attention, by what it is called; none of those that no record names."""
    ran = ((timing.kernel.algorithm, timing.total_s) for timing in timings)
    return keyed.sums((one.name, seconds) for one, seconds in ran if one.shape == "queries" and one.name)


def _seconds(ops: Iterable[Op], graph: Graph, machine: Machine) -> float:
    """The kernels of these ops one after another, alike ones timed once."""
    found, known = 0.0, dict[tuple[object, ...], float]()
    for priced in price_all(ops):
        signature = priced.op.signature()
        if signature not in known:
            kernels = plain_kernels(priced, graph.tf32, machine.device, graph.like)
            known[signature] = sum(timing.total_s for timing in time_kernels(kernels, machine))
        found += known[signature]
    return found
