"""What a step on several devices sends: over which links, at which rate, and when a device waits for it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rooflinekit.ir.op import Phase
from rooflinekit.model.collectives import CollectiveTiming, Link
from rooflinekit.strategies.prediction import ParallelPrediction
from rooflinekit.strategies.queues import Message
from rooflinekit.strategies.records import Mesh

Interval = tuple[float, float]  # seconds from the start of the step


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """What each device sends over one kind of link in a step; of a pipeline's stages the mean."""

    link: Link
    bytes: float  # as nccl-tests counts them: of an all-reduce of S bytes by n devices 2·(n − 1)/n·S
    rate: float  # byte/s of such bytes, without what starting takes: what large messages reach
    collectives: tuple[str, ...]


def sent_over_links(p: ParallelPrediction) -> tuple[Sent, ...]:
    """What is sent over each link, the slowest first. A collective counts for the slowest link on its way."""
    found: dict[Link, list[CollectiveTiming]] = defaultdict(list)
    for message in p.messages:
        if message.timing.bus_bandwidth > 0:
            found[min(message.timing.route.links, key=lambda link: link.bandwidth)].append(message.timing)
    stages = p.strategy.pipeline if isinstance(p.strategy, Mesh) else 1
    return tuple(_sent(link, found[link], stages) for link in sorted(found, key=lambda link: link.bandwidth))


def _sent(link: Link, timings: Sequence[CollectiveTiming], stages: int) -> Sent:
    moved = sum(timing.bus_bandwidth * timing.total_s for timing in timings)
    # The terms of a collective's time that grow with its bytes.
    seconds = sum(timing.transfer_s + timing.copy_s for timing in timings)
    return Sent(
        link=link, bytes=moved / stages, rate=moved / seconds if seconds else link.bandwidth,
        collectives=tuple(dict.fromkeys(timing.collective for timing in timings)),
    )  # fmt: skip


def flop_of_a_device(p: ParallelPrediction) -> float:
    """FLOP of the step on one GPU, shared out evenly: what is computed twice on several devices counts once."""
    return p.one_gpu.flop / p.gpus


def dram_bytes_of_a_device(p: ParallelPrediction) -> float:
    """Compulsory traffic of the slowest device's kernels; a pipeline's pieces are taken as the first two on average."""
    share, times, chunks = p.slowest, 1.0, 1.0
    if isinstance(p.strategy, Mesh) and share.run.slots:
        tasks = sum(what.startswith("forward") for what, _, _ in share.run.slots)
        times, chunks = tasks / min(2, p.strategy.pieces), tasks / p.strategy.pieces
    return sum(
        float(timing.kernel.bytes) * (chunks if timing.kernel.phase is Phase.OPTIMIZER else times)
        for timing in share.prediction.timings
    )


def exposed_intervals(p: ParallelPrediction) -> tuple[Interval, ...] | None:
    """When links are busy and the slowest device stands still for them; together `p.exposed_s`.

    None for a pipeline, whose communication is what its schedule takes longer than with links for nothing.
    """
    if p.slowest.run.slots:
        return None
    busy = merged([(message.start_s, message.end_s) for message in p.messages])
    return overlap(merged(p.slowest.run.waits), busy)


def split(message: Message, exposed: Sequence[Interval]) -> tuple[tuple[Interval, ...], tuple[Interval, ...]]:
    """The parts of a collective's time that are exposed, and those that are hidden."""
    whole = (message.start_s, message.end_s)
    own = overlap([whole], exposed)
    edges = [whole[0], *(edge for interval in own for edge in interval), whole[1]]
    between = zip(edges[::2], edges[1::2], strict=True)
    return own, tuple((start, end) for start, end in between if end > start)


def merged(intervals: Iterable[Interval]) -> tuple[Interval, ...]:
    """The times that lie in any of the intervals, in order.

    >>> merged([(2.0, 3.0), (0.0, 1.0), (0.5, 1.5)])
    ((0.0, 1.5), (2.0, 3.0))
    """
    found: list[Interval] = []
    for start, end in sorted(intervals):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        elif end > start:
            found.append((start, end))
    return tuple(found)


def overlap(one: Sequence[Interval], two: Sequence[Interval]) -> tuple[Interval, ...]:
    """The times that lie in both of two ordered rows of intervals.

    >>> overlap([(0.0, 2.0), (3.0, 5.0)], [(1.0, 4.0)])
    ((1.0, 2.0), (3.0, 4.0))
    """
    cut = ((max(a, c), min(b, d)) for a, b in one for c, d in two)
    return tuple((start, end) for start, end in cut if end > start)
