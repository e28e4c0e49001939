"""In what two predictions differ, and what each of the two is called for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rooflinekit.hardware.device import Device
from rooflinekit.hardware.host import Host
from rooflinekit.ir.graph import Graph
from rooflinekit.model.attention_backends import forced_backends
from rooflinekit.step.attention import attention_seconds
from rooflinekit.step.prediction import Prediction

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
    if forced_backends(a.graph) != forced_backends(b.graph):
        ran_a, ran_b = (" and ".join(attention_seconds(p.timings)) for p in (a, b))
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
        stored: Counter[str] = Counter()
        for tensor in tensors:
            if tensor.dtype.is_floating:
                stored[tensor.dtype.value] += 1
        if stored:
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
