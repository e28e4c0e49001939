"""From the time of one device to that of several, and from one way of using several to another, term by term."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from rooflinekit.distributed.prediction import TERMS, ParallelPrediction
from rooflinekit.distributed.queues import Interval, Message, merged, overlap
from rooflinekit.distributed.records import FSDP, Mesh, Strategy
from rooflinekit.ir import keyed
from rooflinekit.ir.op import Phase
from rooflinekit.timing.collectives import Link

EXPOSED, HIDDEN = "exposed communication", "hidden communication"
PARTED = "÷"  # begins the name of the step to a device's part of the work
_ROUNDING = 1e-12  # of a total: smaller differences are those of sums in another order


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """What lies between two times of a step: `terms` add up to their difference, `aside` is no part of it."""

    labels: tuple[str, str]
    totals: tuple[float, float]  # seconds
    per: str  # what times are of: "step", or "sample" where the batches differ
    steps: Mapping[str, float]  # seconds by cause; they add up to the difference of the totals
    aside: Mapping[str, float]  # seconds that the links are busy beside computation

    def terms(self) -> dict[str, float]:
        """Seconds by cause that the second takes longer; they add up to the difference of the totals."""
        return dict(self.steps)


def from_one(p: ParallelPrediction, *, whole: bool = True) -> Scaling:
    """From one GPU with the whole batch: first a part for each device, then what each term takes beyond its part.

    Of unequal devices the one is the fastest, and the terms are those of the slowest. whole: whether the first time
    is that of the whole batch; else that of a part.
    """
    one, many, count = p.one_gpu, p.terms(), p.gpus
    alone, part_s = one.terms(), one.total_s / count
    steps = {f"{PARTED} {count}": part_s - one.total_s} if whole and count > 1 else {}
    steps |= _named({name: many[name] - alone.get(name, 0.0) / count for name in TERMS}, p.total_s)
    kinds = {share.prediction.machine.name for share in p.shares}
    devices = f"{count} GPUs" if kinds == {one.machine.name} and count > 1 else _devices(p)
    name = f"1 × {one.machine.device.short_title}" + ("" if whole else f" {PARTED} {count}")
    return Scaling(
        labels=(name, f"{devices}, {strategy_name(p.strategy, count)}"),
        totals=(one.total_s if whole else part_s, p.total_s), per="step", steps=steps, aside={HIDDEN: p.hidden_s},
    )  # fmt: skip


def between(a: ParallelPrediction, b: ParallelPrediction) -> Scaling:
    """What each term of b takes longer than that of a; times are of a sample where their batches differ."""
    per = "step" if a.batch == b.batch else "sample"
    one, two = (1.0, 1.0) if per == "step" else (1 / a.batch, 1 / b.batch)
    terms = {name: b.terms()[name] * two - a.terms()[name] * one for name in TERMS}
    names = names_of((a, b))
    totals = a.total_s * one, b.total_s * two
    return Scaling(
        labels=(names[0], names[1]), totals=totals, per=per, steps=_named(terms, max(totals)),
        aside={HIDDEN: b.hidden_s * two - a.hidden_s * one},
    )  # fmt: skip


Limit = Literal["compute", "memory", "latency", "overhead", "communication"]


def limited_by(p: ParallelPrediction) -> Limit:
    """Where most of the slowest device's time goes; waits for other devices and idle stages are overhead."""
    terms, shares = p.terms(), p.slowest.prediction.shares
    kernels = terms["ideal"] + terms["underuse"] + terms["memory"] + terms["launch"]
    whole = (1 - shares["overhead"]) / kernels if kernels else 0.0
    seconds: dict[Limit, float] = {
        "compute": shares["compute"] / whole if whole else 0.0,
        "memory": shares["memory"] / whole if whole else 0.0,
        "latency": shares["latency"] / whole if whole else 0.0,
        "communication": terms["communication"] + terms["contention"],
    }
    seconds["overhead"] = p.total_s - sum(seconds.values())
    return max(seconds, key=seconds.__getitem__)


def _named(terms: Mapping[str, float], total: float) -> dict[str, float]:
    """Terms in words, without those that do not differ; exposed communication is always told."""
    named = {EXPOSED if name == "communication" else name: seconds for name, seconds in terms.items()}
    return {name: s for name, s in named.items() if name == EXPOSED or abs(s) > _ROUNDING * total}


def strategy_name(strategy: Strategy, gpus: int, *, counted: bool = True) -> str:
    """A strategy in a word or two; not counted, what takes all devices is said without their number.

    >>> strategy_name(FSDP(stage=2), 4), strategy_name(Mesh(tensor=2, pipeline=2), 8)
    ('ZeRO 2', 'tensor 2 × pipeline 2 × data 2')
    >>> strategy_name(Mesh(tensor=4), 4, counted=False)
    'tensor'
    """
    if isinstance(strategy, FSDP) and strategy.stage < 3:
        return f"ZeRO {strategy.stage}"
    if not isinstance(strategy, Mesh):
        return type(strategy).__name__
    groups = {"tensor": strategy.tensor, "pipeline": strategy.pipeline}
    groups["data"] = gpus // (strategy.tensor * strategy.pipeline)
    if not counted and gpus in (strategy.tensor, strategy.pipeline):
        return "tensor" if strategy.tensor == gpus else "pipeline"
    return " × ".join(f"{name} {count}" for name, count in groups.items() if count > 1) or "mesh"


def family_of(p: ParallelPrediction) -> str:
    """Equal for steps that differ in the number of their devices alone."""
    return repr(_facts(p, counted=False))


def names_of(predictions: Sequence[ParallelPrediction], *, counted: bool = True) -> tuple[str, ...]:
    """For each prediction what tells it from the others, with or without numbers of devices; at last a number."""
    return told_apart([_facts(p, counted=counted) for p in predictions], usual=1, alike="plain")


def told_apart(facts: Sequence[Sequence[str]], *, usual: int = 0, alike: str = "") -> tuple[str, ...]:
    """For each row of facts those that tell it from the others, else its `usual` one; numbered where that is alike.

    alike: what a row without words is called.
    """
    columns = list(zip(*facts, strict=True))
    differing = [column for column in columns if len(set(column)) > 1] or columns[usual : usual + 1]
    names = [", ".join(filter(None, words)) or alike for words in zip(*differing, strict=True)]
    return tuple(f"{name} #{i}" if names.count(name) > 1 else name for i, name in enumerate(names, 1))


def _facts(p: ParallelPrediction, *, counted: bool) -> tuple[str, ...]:
    """What tells steps on several devices apart, as a reader would say it."""
    network, savers, usual = p.cluster.network, str(p.savers), asdict(type(p.strategy)())
    options = [
        f"{name} {value}" for name, value in asdict(p.strategy).items()
        if value != usual[name] and name not in ("tensor", "pipeline", "stage")  # which are in its name
    ]  # fmt: skip
    return (
        p.graph_name, _devices(p, counted=counted), p.cluster.name,
        f"network {network.port_rate / 1e9:g} Gbit/s" if network else "",
        strategy_name(p.strategy, p.gpus, counted=counted), "" if savers == "none" else savers, f"batch {p.batch}",
        ", ".join(options),
    )  # fmt: skip


def _devices(p: ParallelPrediction, *, counted: bool = True) -> str:
    """How many of which, "2 × T4": of several kinds all of them."""
    counts = Counter[str]()
    for share in p.shares:
        counts[share.prediction.machine.device.short_title] += len(share.numbers)
    return " + ".join(f"{count} × {name}" if counted else name for name, count in counts.items())


# What a step on several devices sends: over which links, at which rate, and when a device waits for it.


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """What each device sends over one kind of link in a step; of a pipeline's stages the mean."""

    link: Link
    bytes: float  # as nccl-tests counts them: of an all-reduce of S bytes by n devices 2·(n − 1)/n·S
    rate: float  # byte/s of such bytes, without what starting takes: what large messages reach


def sent_over_links(p: ParallelPrediction) -> tuple[Sent, ...]:
    """What is sent over each link, the slowest first. A collective counts for the slowest link on its way."""
    timed = (message.timing for message in p.messages if message.timing.bus_bandwidth > 0)
    found = keyed.lists((min(timing.route.links, key=lambda link: link.bandwidth), timing) for timing in timed)
    stages = p.strategy.pipeline if isinstance(p.strategy, Mesh) else 1
    sent = []
    for link, timings in sorted(found.items(), key=lambda item: item[0].bandwidth):
        moved = sum(timing.bus_bandwidth * timing.total_s for timing in timings)
        # The terms of a collective's time that grow with its bytes.
        seconds = sum(timing.transfer_s + timing.copy_s for timing in timings)
        rate = moved / seconds if seconds else link.bandwidth
        sent.append(Sent(link=link, bytes=moved / stages, rate=rate))
    return tuple(sent)


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
