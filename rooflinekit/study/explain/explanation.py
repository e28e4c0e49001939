"""What lies between the times of two predictions: term by term, cause by cause, kernel by kernel."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from rooflinekit.errors import ComparisonError
from rooflinekit.ir import notebook
from rooflinekit.ir.tensor import Math
from rooflinekit.step.prediction import UNDERUSE, Prediction
from rooflinekit.step.report import table_rows
from rooflinekit.step.variants import BATCH
from rooflinekit.study.errors.ratio import Ratio, Ratios
from rooflinekit.study.explain import story
from rooflinekit.study.explain.differences import Difference, differences, labels
from rooflinekit.study.explain.drivers import Driver, drivers_of
from rooflinekit.study.explain.peaks import computed_in, main_format, stated_peak
from rooflinekit.units import format_quantity

_SHOWN = 10  # drivers in a notebook
_KEPT = 20  # drivers in JSON
_FORMATS = {"device", "format", "autocast", "tf32"}  # what changes the peak that FLOP are held against


@dataclass(frozen=True, kw_only=True, repr=False)  # no slots: the cached properties need a place
class Explanation:
    """What lies between the times of two predictions, a and b.

    Times are those of a step; of a sample, where the size named batch differs: see `per`.
    """

    a: Prediction
    b: Prediction

    @cached_property
    def differences(self) -> tuple[Difference, ...]:
        """In what the two differ, as stated: network, device, sizes, execution, formats."""
        return differences(self.a, self.b)

    @cached_property
    def labels(self) -> tuple[str, str]:
        """What the two are called: by what differs."""
        return labels(self.a, self.differences)

    def differs(self, *what: str) -> bool:
        """Whether the two differ in any of these."""
        return any(difference.what in what for difference in self.differences)

    @property
    def per(self) -> str:
        """What times are of: "step", or "sample" where the batches differ."""
        return "sample" if self.differs(BATCH) else "step"

    @property
    def _scale(self) -> tuple[float, float]:
        return (1 / self.a.sizes[BATCH], 1 / self.b.sizes[BATCH]) if self.per == "sample" else (1.0, 1.0)

    @property
    def totals(self) -> tuple[float, float]:
        """Wall times of a and b."""
        return self.a.total_s * self._scale[0], self.b.total_s * self._scale[1]

    @property
    def flop(self) -> tuple[float, float]:
        """FLOP of a and b, of as much work as the times are."""
        return self.a.flop * self._scale[0], self.b.flop * self._scale[1]

    @property
    def flop_ratio(self) -> float:
        """FLOP of a over FLOP of b."""
        return _ratio(*self.flop)

    @property
    def time_ratio(self) -> float:
        """Wall time of a over wall time of b: above 1 where b is faster."""
        return _ratio(*self.totals)

    @property
    def gpu_ratio(self) -> float:
        """Time that the GPU is busy with a, over that of b."""
        return _ratio(self.a.gpu_s * self._scale[0], self.b.gpu_s * self._scale[1])

    @property
    def delta_s(self) -> float:
        """Wall time of b minus that of a."""
        return self.totals[1] - self.totals[0]

    @cached_property
    def promised(self) -> float:
        """The speed-up that FLOP promise: their ratio, times that of the stated peaks where device or format differ."""
        if not self.differs(*_FORMATS):
            return self.flop_ratio
        return self.flop_ratio * self.peaks[1] / self.peaks[0]

    @property
    def formats(self) -> tuple[Math, Math]:
        """The arithmetic that most of the FLOP of a and b are done in."""
        return _format(self.a), _format(self.b)

    @cached_property
    def peaks(self) -> tuple[float, float]:
        """FLOP/s that the datasheets of a and b state for it."""
        return _peak(self.a), _peak(self.b)

    def terms(self) -> dict[str, float]:
        """Seconds that each term of b has more than that of a; they add up to `delta_s`."""
        a, b = self._scaled_terms()
        return {name: b.get(name, 0.0) - a.get(name, 0.0) for name in {**a, **b}}

    def underuse(self) -> dict[str, float]:
        """Seconds that each cause of peak not reached has more in b than in a; they add up to the term `underuse`."""
        a, b = ({name: s * k for name, s in p.underuse().items()} for p, k in self._sides())
        return {name: b[name] - a[name] for name in UNDERUSE}

    def shortfall(self) -> dict[str, float]:
        """What keeps b from the time that its FLOP promise, a's over `promised`: seconds by cause, the largest first.

        The causes are the terms, with `underuse` in its parts; they add up to b's time less the promised one. Below 0
        is what b saves beyond the promise. Empty where there is no promise, for want of FLOP.
        """
        if not (math.isfinite(self.promised) and self.promised > 0):
            return {}
        a, b = self._scaled_terms()
        for terms, (p, factor) in zip((a, b), self._sides(), strict=True):
            del terms["underuse"]
            terms.update({name: seconds * factor for name, seconds in p.underuse().items()})
        missing = {name: b.get(name, 0.0) - a.get(name, 0.0) / self.promised for name in {**a, **b}}
        return dict(sorted(missing.items(), key=lambda item: -abs(item[1])))

    def _sides(self) -> tuple[tuple[Prediction, float], tuple[Prediction, float]]:
        return (self.a, self._scale[0]), (self.b, self._scale[1])

    def _scaled_terms(self) -> list[dict[str, float]]:
        return [{name: seconds * factor for name, seconds in p.terms().items()} for p, factor in self._sides()]

    @cached_property
    def drivers(self) -> tuple[Driver, ...]:
        """Groups of kernels, the largest difference first, that add up to `delta_s`; see `drivers_of`."""
        return drivers_of(self.a, self.b, self._scale, one_network=not self.differs("network"))

    def intervals(self, level: float = 0.9) -> tuple[tuple[float, float], tuple[float, float]]:
        """Bounds of both times, in seconds."""
        (a_low, a_high), (b_low, b_high) = self.a.interval(level), self.b.interval(level)
        a, b = self._scale
        return (a_low * a, a_high * a), (b_low * b, b_high * b)

    @cached_property
    def ratio(self) -> Ratio:
        """b's time by a's, with its 90 % interval: what both are off by together, on one GPU or host, is not in it."""
        ratios = Ratios((self.a, self.b), one_network=not self.differs("network"))
        return ratios.of(1, 0, self._scale[1] / self._scale[0])

    @property
    def overlapping(self) -> bool:
        """Whether the 90 % intervals of the two times overlap; which is faster may be certain nevertheless: `ratio`."""
        (a_low, a_high), (b_low, b_high) = self.intervals()
        return max(a_low, b_low) <= min(a_high, b_high)

    def to_dict(self) -> dict[str, object]:
        """Everything but the kernels, ready for JSON. Ratios to nothing are None."""
        return {
            "a": self.a.to_dict(),
            "b": self.b.to_dict(),
            "labels": list(self.labels),
            "differences": [{"what": d.what, "a": d.a, "b": d.b} for d in self.differences],
            "per": self.per,
            "a_s": self.totals[0],
            "b_s": self.totals[1],
            "flop_ratio": _finite(self.flop_ratio),
            "promised_ratio": _finite(self.promised),
            "time_ratio": _finite(self.time_ratio),
            "gpu_ratio": _finite(self.gpu_ratio),
            "delta_s": self.delta_s,
            "terms": self.terms(),
            "underuse": self.underuse(),
            "shortfall": self.shortfall(),
            "intervals_overlap": self.overlapping,
            "certain": self.ratio.certain,
            "b_by_a": [_finite(self.ratio.low), _finite(self.ratio.high)],
            "drivers": [
                {
                    "module": d.module, "counterpart": d.counterpart, "kind": d.kind,
                    "a_s": d.a_s, "b_s": d.b_s, "delta_s": d.delta_s,
                }
                for d in self.drivers[:_KEPT]
            ],
            "story": list(story.sentences(self)),
            "details": list(self.details),
        }  # fmt: skip

    @property
    def details(self) -> tuple[str, ...]:
        """Sentences behind the answer: what differs, datasheets, waits, algorithms, traffic, the sum of the terms."""
        return tuple(story.details(self))

    def __repr__(self) -> str:
        return f"<Explanation {next(story.sentences(self))}>"

    def __str__(self) -> str:
        return "\n".join(story.sentences(self))

    def _repr_html_(self) -> str:
        def text(seconds: float) -> str:
            return format_quantity(seconds, "s")

        drivers = [(d.words, text(d.a_s), text(d.b_s)) for d in self.drivers[:_SHOWN]]
        where = "" if self.differs("device") else f" on {self.a.machine.name}"
        return notebook.block(
            f"{self.labels[0]} and {self.labels[1]}{where}",
            notebook.paragraphs(story.sentences(self)),
            notebook.table(["", *self.labels], [(label, *values) for label, values in table_rows((self.a, self.b))]),
            notebook.folded(
                "details",
                notebook.paragraphs(self.details),
                notebook.table(["module, kind of op", *self.labels], drivers),
            ),
        )


def explain(a: Prediction, b: Prediction) -> Explanation:
    """What lies between the time of `a` and that of `b`, in whatever they differ.

    That may be the network, the GPU, sizes, formats, or the way of execution. Where the batches differ, all is said of
    a sample. Raises ComparisonError for what are no two predictions, for two fits of one device, whose difference is
    no device's, and for two networks in two modes.
    """
    for given in (a, b):
        if not isinstance(given, Prediction):
            raise ComparisonError(f"explain: expected two predictions, as of rk.predict; got {type(given).__name__}")
    if a.machine.device == b.machine.device and a.machine.constants != b.machine.constants:
        names = " and ".join(p.machine.constants.name for p in (a, b))
        raise ComparisonError(
            f"the two predictions rest on different fits of {a.machine.name}: {names}; predict both with the same"
        )
    found = Explanation(a=a, b=b)
    if found.differs("network") and found.differs("mode"):
        both = " and ".join(f"{p.graph_name} in {p.mode}" for p in (a, b))
        raise ComparisonError(f"the two predictions differ in network and mode: {both}; predict both in the same mode")
    return found


def _format(p: Prediction) -> Math:
    arithmetic, engine = main_format(p)
    return computed_in(p.machine, arithmetic, engine=engine)


def _peak(p: Prediction) -> float:
    arithmetic, engine = main_format(p)
    return stated_peak(p.machine, arithmetic, engine=engine)


def _ratio(a: float, b: float) -> float:
    return a / b if b else float("inf")


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
