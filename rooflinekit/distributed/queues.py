"""Three queues a device: the CPU issues, the GPU computes, and collectives run beside it on the links.

A collective starts when every device of its group has come to it and the one before it is over. Kernels beside it take
longer, as `model.contention` says; a kernel that waits for it stands still, and of that time what the links are busy
in is communication, the rest the wait for a slower device.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from rooflinekit.distributed.groups import Groups
from rooflinekit.distributed.rewriting import BEGIN, HOST_COPY, WORK, is_ours
from rooflinekit.hardware.device import Device
from rooflinekit.hardware.host import Host
from rooflinekit.ir.op import Op, Phase
from rooflinekit.published.stated import PROGRAMS
from rooflinekit.step.entry import by_issue, entry_of, is_captured, issue_cost_s, reads_a_number
from rooflinekit.step.prediction import Prediction
from rooflinekit.step.timeline import Span
from rooflinekit.timing.collectives import CollectiveTiming, time_copy
from rooflinekit.timing.memory_system import slowdown_of
from rooflinekit.timing.timings import Timing

Interval = tuple[float, float]  # seconds from the start of the step


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A collective on the links, in seconds from the start of the step."""

    key: str
    group: str
    timing: CollectiveTiming
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRun:
    """What became of one device's step. Seconds; the parts and the kernels' own times add up to `end_s`."""

    spans: tuple[Span, ...]
    cpu: tuple[tuple[str, float, float], ...]  # what, from, to
    idle_s: float  # waits for the CPU
    exposed_s: float  # waits while the links are busy
    straggling_s: float  # waits for slower devices
    contention_s: float  # by which kernels beside collectives are slower
    end_s: float
    communicates: bool
    offload_s: float  # of `idle_s`: for an optimizer on the CPU, and for activations on their way
    slots: tuple[tuple[str, float, float], ...] = ()  # of a pipeline's stage: what, from, to
    waits: tuple[Interval, ...] = ()  # it stands still for collectives or other devices


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The timelines of all devices, and of the links between them."""

    devices: tuple[DeviceRun, ...]
    messages: tuple[Message, ...]

    @property
    def communication_s(self) -> float:
        """How long the links are busy, collectives of different groups at the same time counted once."""
        return covered([(m.start_s, m.end_s) for m in self.messages])


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How a device waits for its CPU and its links."""

    device: Device
    latency_s: float  # from a launch to the first instruction on an idle device
    sync_s: float  # at the end of the step; 0 where nobody waits
    tail_s: float | None = None  # instead of that, where it does not depend on when the last kernel ends
    steady: bool = False  # whether the CPU has long issued everything when the device comes to it
    progress: float | None = None  # of kernels beside collectives, where it is known, over what they do alone
    stretch: float = 1.0  # by which all that the device and its CPU do takes longer than predicted


def run_devices(programs: Sequence[tuple[Sequence[Item], Pace]]) -> Run:
    """Runs devices whose programs hold the same collectives in the same order."""
    devices, links = [DeviceQueues(pace) for _, pace in programs], Links()
    run_together(devices, [items for items, _ in programs], links)
    return Run(devices=tuple(device.finished() for device in devices), messages=tuple(links.messages))


def run_together(devices: Sequence[DeviceQueues], programs: Sequence[Sequence[Item]], links: Links) -> None:
    """Goes on with a program on each device; their collectives are the same, in the same order."""
    for device, items in zip(devices, programs, strict=True):
        device.items = iter(items)
    for sent in [item for item in programs[0] if isinstance(item, Transmission)]:
        links.carry(sent, devices)
    for device in devices:
        device.next_sent()


@dataclass(slots=True, kw_only=True)
class Links:
    """The links between some devices, and what they have carried: of each group one collective after another."""

    free: bool = False  # whether they take no time
    messages: list[Message] = field(default_factory=list)
    ended: dict[str, float] = field(default_factory=dict)  # by group

    def carry(self, sent: Transmission, devices: Sequence[DeviceQueues]) -> None:
        """A collective of all these devices, which starts when the last of them has come to it."""
        ready = max([device.next_ready_s() for device in devices])
        start = max(ready, self.ended.get(sent.group, 0.0))
        end = self.ended[sent.group] = start + (0.0 if self.free else sent.timing.total_s)
        message = Message(key=sent.key, group=sent.group, timing=sent.timing, start_s=start, end_s=end)
        self.messages.append(message)
        for device in devices:
            device.receive(message, sent)


class DeviceQueues:
    """One device on its way through its program; times in seconds from the start of the step."""

    def __init__(self, pace: Pace) -> None:
        self.items: Iterator[Item] = iter(())  # that are still to come
        self.pace = pace
        self.cpu = self.gpu = self.barrier = 0.0
        self.idle = self.exposed = self.straggling = self.contention = self.offload = 0.0
        self.spans: list[Span] = []
        self.work: list[tuple[str, float, float]] = []
        self.messages: list[tuple[Message, tuple[float, float]]] = []  # that are not over yet, see `_progress`
        self.waits: list[Interval] = []
        self.ends: dict[str, float] = {}
        self.engines = {True: 0.0, False: 0.0}  # when they are free, into the device and out of it
        self.copies: dict[str, float] = {}  # when each is over

    def next_sent(self) -> Transmission | None:
        """Goes on to the next collective, or to the end of the program where none is left."""
        for item in self.items:
            if isinstance(item, Transmission):
                return item
            self._step(item)
        return None

    def next_ready_s(self) -> float:
        """Goes on to the next collective; when it could start as far as this device is concerned."""
        sent = self.next_sent()
        assert sent is not None
        self._spend(sent.key, sent.cpu_s)
        # After all that was launched before it, and not before the barrier that holds that up.
        return max(self.gpu, self.barrier, self._earliest())

    def receive(self, message: Message, sent: Transmission) -> None:
        """The collective is going to run from here to there."""
        self.messages.append((message, self._progress(sent)))
        self.ends[message.key] = message.end_s
        if sent.blocking:
            self.barrier = max(self.barrier, message.end_s)

    def _progress(self, sent: Transmission) -> tuple[float, float]:
        """Of kernels beside it that arithmetic limits, and of those that memory does, over what they do alone."""
        if sent.on_host:
            return 1.0, 1.0
        if self.pace.progress is not None:
            return self.pace.progress, self.pace.progress
        slower = slowdown_of(sent.timing, self.pace.device)
        return 1 / slower.compute, 1 / slower.memory

    def hold(self, until_s: float) -> None:
        """The device computes nothing before that."""
        self.barrier = max(self.barrier, until_s)

    def finished(self) -> DeviceRun:
        """The timeline of the step, after everything that was sent has arrived."""
        self.hold(max(self.ends.values(), default=0.0))
        left = 0.0 if self.pace.steady else max(0.0, self.cpu - self.gpu)  # of the CPU, after the last kernel
        tail = self.pace.stretch * (self.pace.sync_s if self.pace.tail_s is None else self.pace.tail_s)
        self.idle += left + tail
        self._stand_still(self.gpu + left)
        return DeviceRun(
            spans=tuple(self.spans), cpu=tuple(self.work), idle_s=self.idle, exposed_s=self.exposed,
            straggling_s=self.straggling, contention_s=self.contention, end_s=self.gpu + tail,
            communicates=bool(self.ends), offload_s=self.offload, waits=tuple(self.waits),
        )  # fmt: skip

    def _earliest(self) -> float:
        return 0.0 if self.pace.steady else self.cpu + self.pace.stretch * self.pace.latency_s

    def _spend(self, what: str, seconds: float) -> None:
        if seconds:
            end = self.cpu + self.pace.stretch * seconds
            self.work.append((what, self.cpu, end))
            self.cpu = end

    def _step(self, item: Work | Barrier | HostCopy) -> None:
        if isinstance(item, Barrier):
            self._wait_for(item.keys)
            return
        if isinstance(item, HostCopy):  # it starts after all that the device has been given before it
            self._spend(item.key, item.cpu_s)
            start = max(self.gpu, self.barrier, self._earliest(), self.engines[item.inward])
            self.engines[item.inward] = self.copies[item.key] = start + item.seconds
            return
        if item.waits:
            self._stand_still(self.gpu)
            self.cpu = max(self.cpu, self.gpu)
            self._spend(item.what, item.cpu_s)
            self.idle += self.cpu - self.gpu
            self.offload += self.pace.stretch * item.cpu_s
            self.gpu = self.cpu
            return
        self._spend(item.what, item.cpu_s)
        for i, timing in enumerate(item.kernels):
            if i:
                self._spend(item.what, item.between_s)
            gap = (
                self.pace.stretch * item.gaps_s[i] if item.gaps_s is not None else max(0.0, self._earliest() - self.gpu)
            )
            self.idle += gap
            before = self.gpu
            self._stand_still(self.gpu + gap)
            start = self.gpu
            self._compute(timing.total_s, float(is_arithmetic(timing)))
            self.spans.append(
                Span(timing=timing, issued_s=self.cpu, start_s=start, end_s=self.gpu, waited_s=start - before)
            )
        if item.block_s:
            self._stand_still(self.gpu)
            self._compute(item.block_s, item.arithmetic)
        if item.syncs and item.kernels:
            self.cpu = max(self.cpu, self.gpu) + self.pace.stretch * self.pace.sync_s

    def _wait_for(self, keys: Iterable[str]) -> None:
        """For collectives the next kernel waits; for a copy the device stands idle at once."""
        for key in keys:
            if key in self.ends:
                self.hold(self.ends[key])
            elif (wait := self.copies[key] - max(self.gpu, self.barrier)) > 0:
                self._stand_still(self.gpu)
                self.gpu += wait
                self.idle += wait
                self.offload += wait

    def _stand_still(self, ready_s: float) -> None:
        """Stops at the barrier, from when the device could have gone on; `gpu` is then when it does."""
        if self.messages:
            self.messages = [one for one in self.messages if one[0].end_s > ready_s]
        self.gpu = max(ready_s, self.barrier)
        if self.gpu > ready_s:
            self.waits.append((ready_s, self.gpu))
            busy = covered([(m.start_s, m.end_s) for m, _ in self.messages], ready_s, self.gpu)
            self.exposed += busy
            self.straggling += self.gpu - ready_s - busy

    def _compute(self, seconds: float, arithmetic: float) -> None:
        """Kernels that take so long alone; arithmetic limits this share of it."""
        now, left, extra = self.gpu, self.pace.stretch * seconds, 0.0
        for message, (computing, reading) in self.messages:
            if left <= 0 or message.end_s <= now:
                continue
            if message.start_s > now:  # undisturbed until then
                free = min(left, message.start_s - now)
                now, left = now + free, left - free
            beside, rate = message.end_s - now, arithmetic * computing + (1 - arithmetic) * reading
            done = min(left, beside * rate)
            spent = beside if done < left else left / rate
            now, left, extra = now + spent, left - done, extra + spent - done
        self.gpu = now + left
        self.contention += extra


def is_arithmetic(timing: Timing) -> bool:
    """Whether arithmetic limits a kernel."""
    return timing.compute_s > timing.memory_s and timing.busy_s >= timing.launch_s


def covered(intervals: Sequence[Interval], start_s: float = 0.0, end_s: float = float("inf")) -> float:
    """How much of the time from one moment to another lies in any of the intervals.

    >>> covered([(0.0, 2.0), (1.0, 3.0), (5.0, 6.0)]), covered([(0.0, 2.0)], 1.5, 9.0)
    (4.0, 0.5)
    """
    return sum(end - start for start, end in overlap(merged(intervals), [(start_s, end_s)]))


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
    """The times that lie in both of two rows of intervals, each of them in order and apart.

    >>> overlap([(0.0, 2.0), (3.0, 5.0)], [(1.0, 4.0)])
    ((1.0, 2.0), (3.0, 4.0))
    """
    found, i, j = [], 0, 0
    while i < len(one) and j < len(two):
        start, end = max(one[i][0], two[j][0]), min(one[i][1], two[j][1])
        found += [(start, end)] if end > start else []
        i, j = (i + 1, j) if one[i][1] < two[j][1] else (i, j + 1)
    return tuple(found)


# What a device's program consists of: ops with their kernels, collectives, copies to the host, and waits.


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """An op on its way: what the CPU spends before its first kernel, and the kernels. `gap_s`: instead of the
    CPU's time, how long the device stands idle before it, where that does not depend on when it starts."""

    what: str
    cpu_s: float = 0.0
    kernels: tuple[Timing, ...] = ()
    between_s: float = 0.0  # of the CPU, before each further kernel
    gaps_s: tuple[float, ...] | None = None  # before each kernel
    syncs: bool = False  # whether the CPU waits for its result
    waits: bool = False  # whether the device stands idle meanwhile, having done all before it
    block_s: float = 0.0  # of kernels that are timed together, such as a layer's
    arithmetic: float = 1.0  # the share of them that this limits


@dataclass(frozen=True, slots=True, kw_only=True)
class Transmission:
    """A collective on its way."""

    key: str
    timing: CollectiveTiming
    group: str = "data"
    blocking: bool = False
    cpu_s: float = 0.0
    on_host: bool = False  # whether it leaves the devices' SMs and memory alone


@dataclass(frozen=True, slots=True, kw_only=True)
class Barrier:
    """The device computes nothing before these collectives, or copies to or from the host, are over."""

    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCopy:
    """Tensors on their way between the device and its host, by the engine of that direction."""

    key: str
    seconds: float
    inward: bool
    cpu_s: float = 0.0


Item = Work | Transmission | Barrier | HostCopy


_PYTHON_ISSUES, _PYTHON_ISSUES_WITH_MODULE, _HANDOVER_S = (
    PROGRAMS[name].value for name in ("Python of an op", "Python of an op and module", "lock handover")
)


def program_of(p: Prediction, groups: Groups, threads: int = 1, stretch: float = 1.0) -> tuple[list[Item], Pace]:
    """The program of a device whose step, without waiting for others, is predicted.

    threads: how many issue their forward ops, and copy their inputs, in turns with this one. stretch: what all takes
    longer than predicted, as measured.

    Eager and compiled steps are issued anew, so that a device that has waited finds its kernels launched. Steps that
    are one CUDA graph, steps in a loop and those of a CPU keep the gaps between their kernels.
    """
    plain = is_issued_anew(p)
    items: list[Item] = []
    if plain:  # before the first op the step's start, and inputs that the CPU copies and waits for
        copies = p.timeline.copies
        waits = copies[-1].end_s + p.host.sync - p.host.step if copies else 0.0
        cpu_s = p.host.step + waits + copied_s(p, threads - 1) + entry_s(p)
        items.append(Work(what="step and inputs", cpu_s=cpu_s))
    return items + [item for _, item in items_of(p, groups, threads)], replace(pace_of(p), stretch=stretch)


def pace_of(p: Prediction) -> Pace:
    """How CPU and GPU of the device meet."""
    plain = is_issued_anew(p)
    return Pace(
        device=p.machine.device, latency_s=p.host.launch_latency, sync_s=p.host.sync,
        tail_s=None if plain else p.timeline.tail_s, steady=not plain,
    )  # fmt: skip


def is_issued_anew(p: Prediction) -> bool:
    """Whether kernels start when they are launched, and not at fixed gaps."""
    execution = p.execution
    whole = execution.backend in ("cuda-graph", "cudagraphs") or execution.sync != "step" or execution.non_blocking
    return not whole and p.machine.device.kind != "cpu"


def waits_of(p: Prediction, run: DeviceRun, copied_s: float) -> dict[str, float]:
    """Seconds by cause that a device did not compute in; `copied_s` of its inputs.

    Where ops are issued anew, it has stood idle for the copies; else they come before what has run.
    """
    return {
        "input": copied_s, "overhead": run.idle_s - run.offload_s - (copied_s if is_issued_anew(p) else 0.0),
        "contention": run.contention_s, "communication": run.exposed_s, "straggling": run.straggling_s,
        "offload": run.offload_s,
    }  # fmt: skip


def copied_s(p: Prediction, threads: int = 1) -> float:
    """How long the step's inputs are on their way, those of all threads together."""
    return threads * sum(one.transfer.seconds for one in p.timeline.copies)


def entry_s(p: Prediction) -> float:
    """CPU time of entering a compiled step; of one that is replayed also of launching its first CUDA graph."""
    entry = entry_of(p.host, p.execution, p.graph)
    return entry.enter_s + entry.replay_s


def items_of(p: Prediction, groups: Groups, threads: int = 1) -> Iterator[tuple[Op, Item]]:
    """The items of each op in order, see `program_of`."""
    plain = is_issued_anew(p)
    for issue, own in by_issue(p.issues, p.spans):
        op = issue.op
        if is_ours(op):
            # A collective is one more kernel to launch; waiting for one is an event in a queue. A CUDA graph of what is
            # compiled holds all but those of the copies, which DDP's and FSDP's hooks send.
            outside = not p.execution.as_graph or op.attrs.get("group") == "data"
            cost_s = p.host.dispatch_s("default") if plain and outside else 0.0
            if op.kind in (WORK, BEGIN):
                waits = op.attrs.get("waits", False)
                yield op, Work(what=op.name, cpu_s=op.attrs["cpu_s"] if plain or waits else 0.0, waits=waits)
            else:
                yield op, sent_item(op, groups, cost_s)
            continue
        timings, gaps = tuple(span.timing for span in own), tuple(span.waited_s for span in own)
        cost_s = issue_cost_s(issue, p.host, p.execution)
        if not plain:
            yield op, Work(what=op.name, kernels=timings, gaps_s=gaps)
        elif is_captured(op, p.execution):
            yield op, Work(what=op.name, kernels=timings)
        elif any(kernel.chain for kernel in issue.kernels):  # beside its links the CPU launches the next: as on one GPU
            yield op, Work(what=op.name, kernels=timings, cpu_s=cost_s, gaps_s=gaps)
        else:
            cost_s -= max(0, len(timings) - 1) * p.host.launch
            if op.phase is Phase.FORWARD and timings:
                cost_s = max(cost_s, turns_s(p.host, threads))
            syncs = reads_a_number(op)
            yield op, Work(what=op.name, kernels=timings, cpu_s=cost_s, between_s=p.host.launch, syncs=syncs)


def sent_item(op: Op, groups: Groups, cpu_s: float = 0.0) -> Transmission | Barrier | HostCopy:
    """A collective op with its time, or a copy to the host, or a wait for one of them."""
    facts = op.attrs
    if op.kind == HOST_COPY:
        calls = max(len(op.inputs), len(op.outputs))  # a copy for each tensor
        return HostCopy(key=facts["key"], seconds=facts["seconds"], inward=facts["inward"], cpu_s=calls * cpu_s)
    if "keys" in facts:
        return Barrier(keys=facts["keys"])
    size, group, staged, by_engine = (facts.get(name, False) for name in ("bytes", "group", "staged", "by_engine"))
    if by_engine:
        timing = time_copy(size, groups.route(group), groups.setting.links, groups.setting.copy_rate)
    else:
        timing = groups.timing(group, facts["collective"], size)
    if staged:  # down to the host's memory, and up again
        timing = replace(timing, copy_s=timing.copy_s + 2 * size / groups.setting.copy_rate)
    return Transmission(
        key=facts["key"], timing=timing, group=group, blocking=facts["blocking"], on_host=staged or by_engine,
        cpu_s=cpu_s + facts.get("cpu_s", 0.0),
    )  # fmt: skip


def turns_s(host: Host, threads: int) -> float:
    """From one op of a thread to its next, where so many threads of one Python issue ops and nothing else limits them.

    One at a time holds Python's lock; PyTorch lets go of it while an op is dispatched and launched. So each op of each
    thread takes the lock once: the bottleneck law of closed queues.
    """
    issues = _PYTHON_ISSUES if host.module else _PYTHON_ISSUES_WITH_MODULE
    python_s = host.module + issues * host.dispatch_s("default")
    return 0.0 if threads == 1 else threads * (python_s + _HANDOVER_S)
