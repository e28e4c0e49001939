"""Why one network is not as fast as its FLOP say: two predictions on one machine, term by term."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property

from rooflinekit import notebook
from rooflinekit.errors import ComparisonError
from rooflinekit.step.prediction import TERMS, Prediction
from rooflinekit.step.report import table_rows
from rooflinekit.study import story
from rooflinekit.units import format_quantity

_DRIVERS = 10  # in a notebook


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """A group of kernels, by module and kind of op, and its time in both networks, in seconds with its waits."""

    module: str
    kind: str
    a_s: float
    b_s: float

    @property
    def delta_s(self) -> float:
        """Time that b spends more than a."""
        return self.b_s - self.a_s


@dataclass(frozen=True, kw_only=True, repr=False)  # no slots: the cached property needs a place
class Explanation:
    """What lies between the times of two networks, a and b."""

    a: Prediction
    b: Prediction

    @property
    def flop_ratio(self) -> float:
        """FLOP of a over FLOP of b."""
        return self.a.flop / self.b.flop if self.b.flop else float("inf")

    @property
    def time_ratio(self) -> float:
        """Wall time of a over wall time of b: above 1 where b is faster."""
        return self.a.total_s / self.b.total_s

    @property
    def gpu_ratio(self) -> float:
        """Time that the GPU is busy with a, over that of b."""
        return self.a.gpu_s / self.b.gpu_s if self.b.gpu_s else float("inf")

    @property
    def delta_s(self) -> float:
        """Wall time of b minus that of a."""
        return self.b.total_s - self.a.total_s

    def terms(self) -> dict[str, float]:
        """Seconds that each term of b has more than that of a; they add up to `delta_s`."""
        a, b = self.a.terms(), self.b.terms()
        return {name: b[name] - a[name] for name in TERMS}

    @cached_property
    def drivers(self) -> tuple[Driver, ...]:
        """Groups of kernels, the largest difference first; modules of equal path are matched."""
        seconds: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0, 0.0])
        for side, prediction in enumerate((self.a, self.b)):
            for span in prediction.spans:
                kernel = span.timing.kernel
                seconds[kernel.module, kernel.kind][side] += span.timing.total_s + span.waited_s
        drivers = [Driver(module=m, kind=k, a_s=a, b_s=b) for (m, k), (a, b) in seconds.items()]
        return tuple(sorted(drivers, key=lambda driver: -abs(driver.delta_s)))

    @property
    def overlapping(self) -> bool:
        """Whether the 90 % intervals of the two times overlap, so that their order is not certain."""
        (a_low, a_high), (b_low, b_high) = self.a.interval(0.9), self.b.interval(0.9)
        return max(a_low, b_low) <= min(a_high, b_high)

    def to_dict(self) -> dict[str, object]:
        """Everything but the kernels, ready for JSON."""
        return {
            "a": self.a.to_dict(),
            "b": self.b.to_dict(),
            "flop_ratio": self.flop_ratio,
            "time_ratio": self.time_ratio,
            "gpu_ratio": self.gpu_ratio,
            "delta_s": self.delta_s,
            "terms": self.terms(),
            "intervals_overlap": self.overlapping,
            "drivers": [
                {"module": d.module, "kind": d.kind, "a_s": d.a_s, "b_s": d.b_s, "delta_s": d.delta_s}
                for d in self.drivers[:20]
            ],
            "story": list(story.sentences(self)),
        }

    def __repr__(self) -> str:
        return f"<Explanation {next(story.sentences(self))}>"

    def __str__(self) -> str:
        return "\n".join(story.sentences(self))

    def _repr_html_(self) -> str:
        def text(seconds: float) -> str:
            return format_quantity(seconds, "s")

        drivers = [(f"{d.module or '(root)'}, {d.kind}", text(d.a_s), text(d.b_s)) for d in self.drivers[:_DRIVERS]]
        names = self.a.graph_name, self.b.graph_name
        return notebook.block(
            f"{names[0]} and {names[1]} on {self.a.machine.name}",
            notebook.paragraphs(story.sentences(self)),
            notebook.table(["", *names], [(label, *values) for label, values in table_rows((self.a, self.b))]),
            notebook.table(["module, kind of op", *names], drivers),
        )


def explain(a: Prediction, b: Prediction) -> Explanation:
    """What lies between the time of `a` and that of `b`.

    Raises ComparisonError unless both are predicted for the same device, host, constants, execution and mode, and
    for equal values of the sizes that both name.
    """
    for what, of_a, of_b in (
        ("device", a.machine.device, b.machine.device),
        ("host", a.host, b.host),
        ("constants", a.machine.constants, b.machine.constants),
        ("execution", a.execution, b.execution),
        ("mode", a.mode, b.mode),
    ):
        if of_a != of_b:
            of_a, of_b = getattr(of_a, "name", of_a), getattr(of_b, "name", of_b)
            raise ComparisonError(f"the two predictions differ in {what}: {of_a} and {of_b}; predict both on the same")
    for name in a.sizes.keys() & b.sizes.keys():
        if a.sizes[name] != b.sizes[name]:
            values = f"{a.sizes[name]} and {b.sizes[name]}"
            raise ComparisonError(f"the two predictions differ in size {name!r}: {values}; predict both at the same")
    return Explanation(a=a, b=b)
