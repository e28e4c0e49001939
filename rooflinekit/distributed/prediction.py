"""One step of a traced network on several devices: how long, why, what memory it needs."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from rooflinekit.distributed.queues import DeviceRun, Message
from rooflinekit.distributed.records import Savers, Strategy
from rooflinekit.distributed.rewriting import PART
from rooflinekit.errors import InputError
from rooflinekit.hardware.cluster import Cluster
from rooflinekit.ir import keyed, notebook
from rooflinekit.ir.op import Phase
from rooflinekit.step.accuracy import Accuracy, accuracy_of
from rooflinekit.step.bounds import SOURCES
from rooflinekit.step.energy import Draws, Energy, Member, energy_together
from rooflinekit.step.labels import MEANING
from rooflinekit.step.memory import STANDING, MemoryUse
from rooflinekit.step.memory_course import Moment, memory_course
from rooflinekit.step.prediction import TERMS as OWN_TERMS
from rooflinekit.step.prediction import Prediction
from rooflinekit.step.report import precision
from rooflinekit.step.utilization import Utilizes
from rooflinekit.step.verdict import Verdict, verdict_in
from rooflinekit.timing.estimate import around, away, deviations
from rooflinekit.timing.families import of_the_step
from rooflinekit.timing.machine import Machine
from rooflinekit.units import format_bytes, format_quantity

#: Of what a step computes the part beside which gradients are sent: a product's backward is two of its three.
_BACKWARD = 2 / 3

TERMS = (*OWN_TERMS, "contention", "communication", "straggling", "bubble", "offload")


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one device has of a step. Devices that do the same share one."""

    numbers: tuple[int, ...]  # of the devices, as the cluster counts them
    batch: int  # samples
    prediction: Prediction  # of what it runs, as if it never waited for others; in a pipeline two pieces
    run: DeviceRun
    terms: Mapping[str, float]  # seconds; they add up to `total_s`
    memory: MemoryUse
    further: tuple[Prediction, ...] = ()  # of a device's other virtual stages
    staged: tuple[Moment, ...] = ()  # its memory, in a pipeline's stage
    kernels_j: Mapping[str, float] | None = None  # joules by part, beside idling; None where no power is stated

    @property
    def total_s(self) -> float:
        """Seconds from the start of the step until this device is done."""
        return sum(self.terms.values())

    @property
    def course(self) -> tuple[Moment, ...]:
        """The device's memory at moments in their order, on the clock of all devices; the largest sum is its peak.

        A stage of a pipeline has one for each task, and a last one for the optimizer.
        """
        return self.staged or memory_course(self.prediction, [span.start_s for span in self.run.spans])

    def to_dict(self) -> dict[str, Any]:
        """Terms and memory, ready for JSON."""
        accounts = ("peak_bytes", "weight_bytes", "gradient_bytes", "state_bytes", "reserved_bytes", "fits")
        return {
            "device": self.prediction.machine.name, "numbers": list(self.numbers), "batch": self.batch,
            "total_s": self.total_s, "terms": dict(self.terms),
            **{name: getattr(self.memory, name) for name in accounts},
            "verdict": self.memory_verdict().to_dict(),
            "memory_over_time": document(self.course, self.total_s),
        }  # fmt: skip

    def memory_verdict(self, level: float = 0.9) -> Verdict:
        """Bytes allocated, reserved and of the process, with bounds, and how likely it is that they fit: see
        `Prediction.memory_verdict`. What a stage of a pipeline holds of its pieces is followed by their sums, so the
        least room in which it runs is what it reserves. Raises ValueError for a level outside (0, 1).
        """
        if not self.staged:
            return self.prediction.memory_verdict(level)
        gpu = self.prediction.machine.device.kind == "gpu"
        return verdict_in(self.memory, self.memory.reserved_bytes, level, gpu=gpu)

    @property
    def memory_text(self) -> str:
        """What it holds at the fullest moment of each phase, over time, and how likely it is that it fits."""
        course = self.course
        moments = {f"{phase} at {one.op}": one.bytes_of for phase, one in fullest_of(course).items()}
        return f"{told(gpus_named(self.numbers), moments, course, self.total_s)}\n  {self.memory_verdict()}"

    def __str__(self) -> str:
        memory, fits = format_bytes(self.memory.peak_bytes), "fits" if self.memory.fits else "does not fit"
        who = f"{len(self.numbers)} × {self.prediction.machine.name}"
        return f"{who}: {self.batch} samples, {_s(self.total_s)}, {memory}: {fits}{self.memory_verdict().doubt}"


@dataclass(frozen=True, kw_only=True, repr=False)  # no slots: cached properties need a place
class SharedStep(Draws, Utilizes):
    """One training step on several GPUs, of a traced network or of a described decoder. All times are seconds."""

    cluster: Cluster
    gpus: int  # that take part
    batch: int  # samples, or sequences, of the whole step

    if TYPE_CHECKING:

        @property
        @abstractmethod
        def total_s(self) -> float:
            """Wall time of the step."""

        @abstractmethod
        def interval(self, level: float = 0.9) -> tuple[float, float]:
            """Bounds in seconds that hold the true time with this probability."""

        @abstractmethod
        def memory_verdict(self, level: float = 0.9) -> Verdict:
            """How likely the GPUs that need most memory are to have room."""

    @property
    def counted(self) -> tuple[str, int]:
        """What a step gets done: so many "samples"; or "tokens"."""
        return "samples", self.batch

    def _took(self) -> str:
        """How long, and its interval."""
        low, high = self.interval()
        return f"{_s(self.total_s)} ({_s(low)} to {_s(high)})"

    def _judged(self, accuracy: Iterable[Accuracy | None]) -> list[str]:
        """A line on energy, where power is stated, and on each accuracy that is known."""
        drawn = [] if self.energy is None else [self.energy.line(self.interval())]
        return drawn + [f"judged: {one}" for one in accuracy if one is not None]

    def _document(self, terms: Mapping[str, float]) -> dict[str, Any]:
        """The part of a document that all such steps have, ready for JSON."""
        return {
            **{name: getattr(self, name) for name in ("gpus", "batch", "total_s", "mfu", "hfu")},
            "cluster": self.cluster.name, "terms": dict(terms), "verdict": self.memory_verdict().to_dict(),
            "energy": None if self.energy is None else self.energy.to_dict(self.interval()),
        }  # fmt: skip


@dataclass(frozen=True, kw_only=True, repr=False)
class ParallelPrediction(SharedStep):
    """One training step on several devices. All times are seconds.

    `communication_s` is how long the links are busy: `hidden_s` while the slowest device computes, and `exposed_s`
    while it waits for them, which is the term "communication".
    """

    strategy: Strategy
    savers: Savers
    shares: tuple[Share, ...]
    messages: tuple[Message, ...]  # on the links
    communication_s: float
    alone: Callable[[], Prediction]  # makes `one_gpu`
    assumptions: tuple[str, ...] = ()
    stretch: float = 1.0  # a measured step on one device, over its prediction

    @property
    def graph_name(self) -> str:
        """The name of the network."""
        return self.shares[0].prediction.graph_name

    @property
    def sizes(self) -> dict[str, int]:
        """The batch of the whole step."""
        return {"batch": self.batch}

    @property
    def machine(self) -> Machine:
        """The machine of each device. Raises InputError where they are not equal."""
        names = sorted({share.prediction.machine.name for share in self.shares})
        if len(names) > 1:
            raise InputError(f"{self.cluster.name}: expected equal GPUs under one limit; got {', '.join(names)}")
        return self.slowest.prediction.machine

    @cached_property
    def one_gpu(self) -> Prediction:
        """The same batch on the fastest device alone, without memory savers."""
        return self.alone()

    @property
    def one_gpu_s(self) -> float:
        """Seconds of that, by what was measured."""
        return self.stretch * self.one_gpu.total_s

    @cached_property
    def slowest(self) -> Share:
        """The device that is done last."""
        return max(self.shares, key=lambda share: share.total_s)

    @property
    def total_s(self) -> float:
        """Wall time of the step."""
        return self.slowest.total_s

    def terms(self) -> dict[str, float]:
        """Seconds of the slowest device by cause; they add up to `total_s`.

        Beside those of `Prediction`: contention, by which collectives slow kernels; communication, waits for the
        links; straggling, waits for slower devices; bubble, a pipeline's idle stages; offload, waits for the CPU's
        optimizer and for activations on their way from it and to it.
        """
        return dict(self.slowest.terms)

    @cached_property
    def _utilization(self) -> tuple[float, float]:
        """Of matrix FLOP in their formats, as a `Prediction` has them."""
        # A share's prediction may stand for a part of its step, such as two pieces of a pipeline's batch.
        found = [0.0, 0.0]
        for share in self.shares:
            for p in (share.prediction, *share.further):
                # forward is run for each part of an accumulated batch
                runs = 1 + len({op.name.rpartition(PART)[2] for op in p.graph.ops if PART in op.name})
                parts = share.batch / max(1, p.sizes.get("batch", share.batch) * runs)
                for i, value in enumerate((p.mfu, p.hfu)):
                    found[i] += len(share.numbers) * parts * value * p.total_s
        return found[0] / (self.gpus * self.total_s), found[1] / (self.gpus * self.total_s)

    @property
    def exposed_s(self) -> float:
        """Communication that the slowest device waits for."""
        return self.slowest.terms["communication"]

    @property
    def hidden_s(self) -> float:
        """Communication beside its computation."""
        return self.communication_s - self.exposed_s

    @cached_property
    def energy(self) -> Energy | None:
        """Joules and watts of all devices, their waits included; None where one's specification states no power."""
        members = [
            Member(count=len(share.numbers), machine=share.prediction.machine, kernels_j=share.kernels_j)
            for share in self.shares
            if share.kernels_j is not None
        ]
        return energy_together(members, self.total_s) if len(members) == len(self.shares) else None

    @property
    def throughput(self) -> float:
        """Samples a second."""
        return self.batch / self.total_s

    @property
    def speedup(self) -> float:
        """How many times faster than the fastest device alone, for as many samples."""
        return self.one_gpu_s / self.total_s

    @property
    def efficiency(self) -> float:
        """The speed-up over the number of devices."""
        return self.speedup / self.gpus

    @property
    def fits(self) -> bool:
        """Whether every device's memory suffices."""
        return all(share.memory.fits for share in self.shares)

    @property
    def fullest(self) -> Share:
        """The devices that need most of their memory, by which the step is judged to fit."""
        return max(self.shares, key=lambda one: one.memory.needed_share)

    def memory_verdict(self, level: float = 0.9) -> Verdict:
        """The verdict of the fullest devices; see `Share.memory_verdict`."""
        return self.fullest.memory_verdict(level)

    @property
    def peak_bytes(self) -> int:
        """Bytes that are allocated on the device that needs most."""
        return max(share.memory.peak_bytes for share in self.shares)

    @property
    def memory_text(self) -> str:
        """Memory by devices, at the fullest moment of each phase and over time; and which of them is the fullest."""
        most = f"the fullest: {gpus_named(self.fullest.numbers)}"
        return "\n".join([*(share.memory_text for share in self.shares), *([most] if self.shares[1:] else [])])

    @property
    def notes(self) -> tuple[str, ...]:
        """Assumptions of the prediction, each once."""
        found = dict.fromkeys(self.assumptions)
        if self.stretch != 1:
            found[
                f"everything but communication takes {self.stretch:.3g} times as long as predicted, as measured on "
                "one GPU"
            ] = None
        for share in self.shares:
            found |= dict.fromkeys(note for note in share.prediction.notes if "does not fit" not in note)
            if not share.memory.fits:
                found[f"{share.prediction.machine.name}: the step does not fit its memory"] = None
        return tuple(found)

    @cached_property
    def message_terms(self) -> Mapping[str, float]:
        """Seconds of the links by collective."""
        return MappingProxyType(keyed.sums((m.timing.collective, m.end_s - m.start_s) for m in self.messages))

    @property
    def accuracy(self) -> tuple[Accuracy, ...]:
        """How far steps on one device, and on several by that on one, were off where they were judged."""
        own = self.slowest.prediction
        several = accuracy_of("several GPUs", own.machine.device) if self.gpus > 1 else None
        return tuple(filter(None, (own.accuracy, several)))

    def interval(self, level: float = 0.9) -> tuple[float, float]:
        """Bounds in seconds that hold the true time with this probability, by the spreads of kernels and of links.

        Both are taken as independent of each other. Links slower by a factor show what they hid, as far as it is longer
        than what computes beside it: what is hidden now, or backward. Where a step on one device was measured, what all
        kernels are off together is known. Raises ValueError for a level outside (0, 1).
        """
        own = self.slowest.prediction
        if not own.total_s or not self.total_s:
            return self.total_s, self.total_s
        waits = (self.exposed_s + self.slowest.terms["contention"]) / self.total_s
        width = deviations(level)
        told = 0.0
        if self.stretch != 1:  # a measured step tells what all kernels are off together
            told = width * of_the_step(t.kernel for t in own.timings) * own.gpu_s / own.total_s
        below, above = (
            (1 - waits) * math.sqrt(max(0.0, side**2 - told**2)) for side in away(own.total_s, own.interval(level))
        )
        spread = max((message.timing.spread for message in self.messages), default=0.0)
        slower = math.exp(width * spread)
        low, high = (math.log(self._with_links(factor) / self.total_s) for factor in (1 / slower, slower))
        others = width * SOURCES["several GPUs"] if self.gpus > 1 else 0.0
        return around(self.total_s, (below, above), others, (low, high))

    def _with_links(self, slower: float) -> float:
        busy_s, exposed_s, contention_s = self.communication_s, self.exposed_s, self.slowest.terms["contention"]
        computing_s = self.total_s - exposed_s - contention_s
        beside_s = max(busy_s - exposed_s, _BACKWARD * computing_s)
        return computing_s + slower * contention_s + max(slower * exposed_s, slower * busy_s - beside_s)

    def to_dict(self) -> dict[str, Any]:
        """Everything but kernels and messages, ready for JSON."""
        low, high = self.interval()
        names = (
            "communication_s", "exposed_s", "hidden_s", "throughput", "one_gpu_s", "speedup", "efficiency", "fits"
        )  # fmt: skip
        return self._document(self.terms()) | {name: getattr(self, name) for name in names} | {
            "model": self.graph_name, "strategy": {"name": type(self.strategy).__name__, **asdict(self.strategy)},
            "savers": asdict(self.savers), "low_s": low, "high_s": high, "collectives_s": dict(self.message_terms),
            "fullest": list(self.fullest.numbers), "fullest_name": gpus_named(self.fullest.numbers),
            "devices": [share.to_dict() for share in self.shares],
            "accuracy": [one.to_dict() for one in self.accuracy], "notes": list(self.notes),
        }  # fmt: skip

    def __str__(self) -> str:
        devices = [str(share) for share in self.shares]
        return "\n".join([*self._facts(), *devices, *self._remarks()])

    def _facts(self) -> list[str]:
        """The step in six lines: what and how long, throughput, links, terms, why, savers and utilization."""
        one = self.slowest.prediction
        saved = "" if str(self.savers) == "none" else f"memory savers: {self.savers}; "
        return [
            f"{self.graph_name} {one.mode} (batch={self.batch}), {precision(one.graph)}, {one.execution.backend} on "
            f"{self.gpus} of {self.cluster.name}, {type(self.strategy).__name__}: {self._took()}",
            f"{self.throughput:.4g} samples/s, {self.speedup:.2f} times one {self.one_gpu.machine.name} "
            f"({_s(self.one_gpu_s)}), efficiency {self.efficiency:.0%}",
            f"links busy {_s(self.communication_s)}: {_s(self.hidden_s)} hidden, {_s(self.exposed_s)} exposed",
            f"terms: {named(self.terms())}",
            f"why: {self._reason()}",
            f"{saved}MFU {self.mfu:.1%} = matrix FLOP / (time · devices · peak), HFU {self.hfu:.1%}",
        ]

    def _remarks(self) -> list[str]:
        """The fullest device where there are several kinds, energy, accuracy, notes."""
        found = []
        if len(self.shares) > 1:
            memory, last = self.fullest.memory, self.shares[-1]
            text = fullest_told(gpus_named(self.fullest.numbers), self.memory_verdict(), fits=self.fits)
            text += f"; {format_bytes(memory.peak_bytes)} allocated"
            if last is not self.fullest:
                text += f", {gpus_named(last.numbers)}: {format_bytes(last.memory.peak_bytes)}"
            found.append(text)
        return [*found, *self._judged(self.accuracy), *(f"note: {note}" for note in self.notes)]

    def _reason(self) -> str:
        """What the slowest device spends its step on, and where most of the rest goes."""
        terms = self.terms()
        computing = sum(terms.get(name, 0.0) for name in ("ideal", "underuse", "memory", "launch", "correction"))
        lost = max(_WAITS, key=lambda name: terms[name])
        text = f"{computing / self.total_s:.0%} of the step is kernels"
        if terms[lost] <= 0.01 * self.total_s:
            return f"{text}, and nothing else takes 1% of it"
        text += f", {terms[lost] / self.total_s:.0%} {MEANING[lost]}"
        if lost == "communication" and self.messages:
            longest = max(self.message_terms, key=lambda name: self.message_terms[name])
            links = {
                link.name for m in self.messages if m.timing.collective == longest for link in m.timing.route.links
            }
            text += f", most for {longest} over {' and '.join(sorted(links))}"
        return text

    def _repr_html_(self) -> str:
        first, *facts = self._facts()
        terms = [
            (MEANING[name], _s(seconds), f"{seconds / self.total_s:.1%}")
            for name, seconds in self.terms().items() if seconds
        ]  # fmt: skip
        facts.pop(2)  # the terms, which are the table
        lines = [*facts, *map(str, self.shares), *self._remarks()]
        return notebook.block(first, notebook.table(["term", "time", "share"], terms), notebook.paragraphs(lines))


_WAITS = ("communication", "straggling", "bubble", "overhead", "input", "contention", "offload")


def named(terms: Mapping[str, float]) -> str:
    """Terms in words, of those above a millionth of their sum: smaller ones are rounding."""
    least = 1e-6 * sum(terms.values())
    return ", ".join(f"{MEANING.get(name, name)} {_s(seconds)}" for name, seconds in terms.items() if seconds > least)


def _s(seconds: float) -> str:
    return format_quantity(seconds, "s")


def gpus_named(gpus: Sequence[int]) -> str:
    """Numbers of GPUs in words: "GPU 3", "GPUs 0 to 7", "GPUs 0, 4"."""
    if len(gpus) == 1:
        return f"GPU {gpus[0]}"
    if tuple(gpus) == tuple(range(gpus[0], gpus[-1] + 1)):
        return f"GPUs {gpus[0]} to {gpus[-1]}"
    return f"GPUs {', '.join(map(str, gpus))}"


def fullest_told(gpus: str, verdict: Verdict, *, fits: bool) -> str:
    """Whether a step fits, by the GPUs that need most memory."""
    need, of = format_bytes(verdict.process.bytes), format_bytes(verdict.usable_bytes)
    return f"{'fits' if fits else 'does not fit'}: {gpus} need most memory, {need} of {of} each; {verdict.likely}"


def fullest_of(course: Sequence[Moment]) -> dict[Phase, Moment]:
    """The fullest moment of each phase."""
    phases = dict.fromkeys(moment.phase for moment in course)
    of_phase = {phase: [moment for moment in course if moment.phase is phase] for phase in phases}
    return {phase: max(own, key=lambda moment: moment.total_bytes) for phase, own in of_phase.items()}


#: So many stretches of a step are told apart, each by its fullest moment.
_STRETCHES = 48
_LEVELS = " ▁▂▃▄▅▆▇█"


def levels(course: Sequence[Moment], end_s: float) -> list[int]:
    """Bytes at the fullest moment of equal stretches of the step; before the first moment what stands."""
    before = course[0].bytes_of if course else {}
    found = [sum(before.get(account, 0) for account in STANDING)] * _STRETCHES
    places = [min(int(s / (end_s or 1.0) * _STRETCHES), _STRETCHES - 1) for s in (*(m.start_s for m in course), end_s)]
    for moment, (first, last) in zip(course, pairwise(places), strict=True):
        found[first : last + 1] = [max(size, moment.total_bytes) for size in found[first : last + 1]]
    return found


def strip(sizes: Sequence[int]) -> str:
    """Levels as a line of blocks, the highest a full one.

    >>> strip([0, 1, 50, 100])
    ' ▁▄█'
    """
    top, most = len(_LEVELS) - 1, max(sizes, default=0) or 1
    return "".join(_LEVELS[max(int(size > 0), round(size / most * top))] for size in sizes)


def told(
    name: str, moments: Mapping[str, Mapping[str, float]], course: Sequence[Moment] = (), end_s: float = 0.0
) -> str:
    """Devices' memory in lines: at each moment the sum and what it consists of; and over time, where that is known."""
    lines = [f"memory of {name}"]
    for moment, held in moments.items():
        parts = ", ".join(f"{account} {format_bytes(size)}" for account, size in held.items() if size)
        lines.append(f"  {moment}: {format_bytes(sum(held.values()))} = {parts}")
    if course:
        lines.append(f"  {strip(levels(course, end_s))} over {format_quantity(end_s, 's')}")
    return "\n".join(lines)


def document(course: Sequence[Moment], end_s: float) -> dict[str, Any]:
    """Ready for JSON: accounts at the fullest moment of each phase, and levels over time."""
    moments = {
        phase.value: {
            "op": one.op, "start_s": one.start_s, "allocated": one.total_bytes,
            **{account.replace(" ", "_"): size for account, size in one.bytes_of.items()},
        } for phase, one in fullest_of(course).items()
    }  # fmt: skip
    return {"moments": moments, "levels": {"stretch_s": end_s / _STRETCHES, "bytes": levels(course, end_s)}}
