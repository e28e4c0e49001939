"""In what two predictions differ, and what each of the two is called for it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rooflinekit.hardware.device import Device
from rooflinekit.hardware.host import Host
from rooflinekit.ir import keyed
from rooflinekit.ir.graph import Graph
from rooflinekit.ir.op import Math
from rooflinekit.kernels.attention_backends import WRITTEN_OUT, forced_backends
from rooflinekit.step.attention import attention_seconds
from rooflinekit.step.prediction import Prediction
from rooflinekit.timing.machine import Machine

#: What is called by its value alone; all else with its name before it, as "batch 8".
_SPEAKING = ("network", "device", "host", "execution", "mode", "format", "layout", "clock", "attention")


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One thing that was stated differently for the two: what, and its value in each as text."""

    what: str
    a: str
    b: str

    def labels(self) -> tuple[str, str]:
        """What each of the two may be called where this is what tells them apart."""
        return (self.a, self.b) if self.what in _SPEAKING else (f"{self.what} {self.a}", f"{self.what} {self.b}")

    def __str__(self) -> str:
        return f"{self.what} ({self.a} against {self.b})"


def differences(a: Prediction, b: Prediction) -> tuple[Difference, ...]:
    """Everything in which two predictions differ, the network first; where nothing else tells, their ops."""
    found = tuple(Difference(what=what, a=x, b=y) for what, x, y in _stated(a, b) if x != y)
    if not found and [op.kind for op in a.graph.ops] != [op.kind for op in b.graph.ops]:
        return (Difference(what="ops", a=str(len(a.graph.ops)), b=str(len(b.graph.ops))),)
    return found


def labels(a: Prediction, found: tuple[Difference, ...]) -> tuple[str, str]:
    """What the two are called in words and figures: by what differs, else by the network's name."""
    if not found:
        return a.graph_name, a.graph_name
    first, *others = (difference.labels() for difference in found)
    if found[0].what != "network" or not others:
        return ", ".join([first[0], *(x for x, _ in others)]), ", ".join([first[1], *(y for _, y in others)])
    return tuple(f"{first[i]} ({', '.join(pair[i] for pair in others)})" for i in (0, 1))  # type: ignore[return-value]


def _stated(a: Prediction, b: Prediction) -> Iterator[tuple[str, str, str]]:
    yield "network", *_networks(a.graph, b.graph)
    yield "mode", a.mode, b.mode
    yield "device", *_named(a.machine.device, b.machine.device)
    yield "host", *_named(a.host, b.host)
    for name in (name for name in a.sizes if name in b.sizes):
        yield name, str(a.sizes[name]), str(b.sizes[name])
    for what, value in _VALUES.items():
        yield what, value(a), value(b)
    if a.execution.attention != b.execution.attention or forced_backends(a.graph) != forced_backends(b.graph):
        ran_a, ran_b = (" and ".join(attention_seconds(p.timings)) or WRITTEN_OUT.name for p in (a, b))
        yield "attention", ran_a, ran_b


def _networks(a: Graph, b: Graph) -> tuple[str, str]:
    """Their names; with their parameters where two networks bear one name."""
    shapes = [Counter(weight.shape for weight in graph.weights) for graph in (a, b)]
    if a.name != b.name or shapes[0] == shapes[1]:
        return a.name, b.name
    first, second = (f"{graph.name} of {graph.parameters} parameters" for graph in (a, b))
    return (first, second) if first != second else (f"the first {a.name}", f"the second {b.name}")


def _named(a: Device | Host, b: Device | Host) -> tuple[str, str]:
    """The names of two records; with what was changed where two of one name differ."""
    if a.name != b.name or a == b:
        return a.name, b.name
    changed = [name for name in type(a).model_fields if getattr(a, name) != getattr(b, name)]
    return a.name, f"{b.name} with another {' and '.join(changed)}"


def _format(graph: Graph) -> str:
    """The floating-point format that most of the weights, or of the inputs, are stored in."""
    for tensors in (graph.weights, graph.inputs):
        if stored := Counter(tensor.dtype.value for tensor in tensors if tensor.dtype.is_floating):
            return stored.most_common(1)[0][0]
    return "no floating point"


#: What a prediction states beside its network, device, host and sizes, as text.
_VALUES: dict[str, Callable[[Prediction], str]] = {
    "execution": lambda p: p.execution.backend,
    "sync": lambda p: p.execution.sync,
    "copy": lambda p: f"{p.execution.copy}{' without blocking' if p.execution.non_blocking else ''}",
    "loader": lambda p: "fast enough" if p.execution.loader_rate is None else f"{p.execution.loader_rate:g}/s",
    "format": lambda p: _format(p.graph),
    "autocast": lambda p: p.graph.autocast or "none",
    "tf32": lambda p: {None: "in convolutions", True: "everywhere", False: "nowhere"}[p.graph.tf32],
    "layout": lambda p: "channels last" if p.graph.channels_last else "channels first",
    "PyTorch": lambda p: str(p.graph.like or "present"),
    "clock": lambda p: "burst" if p.machine.burst else "sustained",
}


#: Kinds of what belongs to no kernel.
UNPLACED = ("inputs", "end of the step")

_Key = tuple[str, str]  # module, kind of op


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """A group of kernels, by module and kind of op, and its time in both, in seconds with its waits."""

    module: str  # the path in a, or in b where a has none
    counterpart: str = ""  # the module in b that stands in its place there, where its path is another
    kind: str
    a_s: float
    b_s: float

    @property
    def delta_s(self) -> float:
        """Time that b spends more than a."""
        return self.b_s - self.a_s

    @property
    def words(self) -> str:
        """The kind with its module and that one's counterpart."""
        if self.kind in UNPLACED:
            return self.kind
        return f"{self.kind} in {self.module or 'the root'}{f' / {self.counterpart}' if self.counterpart else ''}"


def drivers_of(a: Prediction, b: Prediction, scale: tuple[float, float], *, one_network: bool) -> tuple[Driver, ...]:
    """Groups of kernels, the largest difference first; they add up to the difference of the two times.

    scale: what each side's seconds are multiplied by. Modules of equal path are matched; what is left of two networks
    is matched kind by kind, in the order of execution. What belongs to no kernel, the inputs before the first and the
    wait after the last, stands under kinds of its own.
    """
    seconds_a, seconds_b = (_seconds(p, factor) for p, factor in zip((a, b), scale, strict=True))
    # Groups whose path the other has not stand in pairs of one kind, by their places among those left.
    left = keyed.lists((key[1], key) for key in (() if one_network else seconds_b) if key not in seconds_a)
    pairs = {key: left[key[1]].pop(0) for key in seconds_a if key not in seconds_b and left.get(key[1])}
    found = []
    for (module, kind), a_s in seconds_a.items():
        there = pairs.get((module, kind), (module, kind))
        counterpart = "" if there[0] == module else there[0]
        b_s = seconds_b.pop(there, 0.0)
        found.append(Driver(module=module, kind=kind, a_s=a_s, b_s=b_s, counterpart=counterpart))
    found += [Driver(module=module, kind=kind, a_s=0.0, b_s=b_s) for (module, kind), b_s in seconds_b.items()]
    return tuple(sorted(found, key=lambda driver: -abs(driver.delta_s)))


def _seconds(p: Prediction, factor: float) -> dict[_Key, float]:
    spent = ((span.timing.kernel, span.timing.total_s + span.waited_s) for span in p.spans)
    found = keyed.sums(((kernel.module, kernel.kind), factor * seconds) for kernel, seconds in spent)
    line = p.timeline
    before_s = line.input_s + sum(copy.waited_s for copy in line.copies)
    for kind, seconds in zip(UNPLACED, (before_s, line.tail_s), strict=True):
        found["", kind] = factor * seconds
    return found


def main_format(p: Prediction) -> tuple[Math, bool]:
    """The arithmetic that most of the FLOP of products are done in, and whether the tensor core may do them.

    Of a step without products, that of most of its FLOP.
    """
    flop: dict[tuple[Math, bool], list[float]] = defaultdict(lambda: [0.0, 0.0])
    for timing in p.timings:
        kernel = timing.kernel
        counted = flop[kernel.math, kernel.tensor_core and bool(kernel.cost.gemms)]
        counted[0] += float(kernel.cost.matrix_flop)
        counted[1] += float(kernel.cost.flop)
    return max(flop, key=lambda key: flop[key], default=(Math.FP32, False))


def computed_in(machine: Machine, math: Math, *, tensor_core: bool) -> Math:
    """The arithmetic that this machine does it in: tf32 is allowed wherever fp32 is stored, and many have no unit."""
    if math is Math.TF32 and not (tensor_core and math.value in machine.device.matrix_peak):
        return Math.FP32
    return math


def stated_peak(machine: Machine, math: Math, *, tensor_core: bool) -> float:
    """FLOP/s that the datasheet states for what PyTorch computes this arithmetic in on this machine."""
    return machine.matrix_rate(math, tensor_core=tensor_core).peak
