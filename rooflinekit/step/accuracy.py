"""How far predictions of a kind were off where measurements of other people judge them: the accuracy card.

`calibration/accuracy.json` holds a line a source and device, of the sources whose licence allows it; `python
benchmarks/ledger.py DATA --write` makes it of what it judges. A card pools the lines that are nearest to what is asked:
of the same device, else of its architecture, else of its vendor, else all; of networks of the same kind where there are
enough of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import numpy as np

from rooflinekit.hardware.device import Device
from rooflinekit.hardware.specs import data_dir
from rooflinekit.ir.graph import Graph
from rooflinekit.ir.op import Family

_LEAST = 10  # measurements of a card
_MOST = 100  # that one line counts as: a source is no better known for having many more


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One source on one device. Errors are |predicted / measured - 1|; inside: the share within 90 % intervals."""

    source: str
    task: str  # "inference", "training", "decoder training", "several GPUs", "first token", "per token"
    execution: str  # "eager" or "compiled" of a traced step
    networks: str  # "transformers" or "image networks", of a traced step
    device: str
    architecture: str
    vendor: str
    measurements: int
    median: float
    nine_of_ten: float
    inside: float

    @property
    def engine(self) -> str:
        """Of a served model, as `Engine.of` names it: the source's second word."""
        word = self.source.lower().split()[1:2]
        return {"trtllm": "tensorrt-llm"}.get(word[0], word[0]) if word else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """How far predictions of a kind were off: half of them within `median`, nine of ten within `nine_of_ten` (shares
    of the measured time). `inside`: the share of measurements within the 90 % intervals.
    """

    of: str  # what was judged
    on: str
    median: float
    nine_of_ten: float
    inside: float
    measurements: int
    sources: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"{self.of} on {self.on}: median error {self.median:.0%}, 9 of 10 within {self.nine_of_ten:.0%} "
            f"({self.measurements} rows of {', '.join(self.sources)})"
        )

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {**asdict(self), "sources": list(self.sources)}


def accuracy_of(
    task: str, device: Device, execution: str = "", networks: str = "", engine: str = ""
) -> Accuracy | None:
    """What is known of predictions like this one (arguments as in `Line`); None where nobody has measured any."""
    alike = [
        line for line in _lines()
        if line.task == task and line.execution == execution and engine in ("", line.engine)
    ]  # fmt: skip
    for on, near in _scopes(alike, device):
        for kind in (networks, ""):
            lines = [line for line in near if kind in ("", line.networks)]
            if sum(line.measurements for line in lines) >= _LEAST:
                words = [kind or " and ".join(sorted({line.networks for line in lines} - {""})), execution]
                return _pooled(lines, ", ".join([task, *filter(None, (engine, *words))]), on)
    return None


def step_accuracy(graph: Graph, device: Device, *, fused: bool) -> Accuracy | None:
    """The accuracy of traced steps like this one, on one device."""
    families = {priced.timed_as for priced in graph.priced}
    networks = "image networks" if Family.CONVOLUTION in families else "transformers"
    task = "training" if graph.mode == "training" else "inference"
    return accuracy_of(task, device, "compiled" if fused else "eager", networks)


def engine_accuracy(device: Device, engine: str = "") -> tuple[Accuracy, ...]:
    """The accuracy of first and further tokens of engines that serve language models, or of one of them."""
    return tuple(filter(None, (accuracy_of(task, device, engine=engine) for task in ("first token", "per token"))))


@cache
def _lines() -> tuple[Line, ...]:
    text = (data_dir("calibration") / "accuracy.json").read_text(encoding="utf-8")
    return tuple(Line(**line) for line in json.loads(text))


def _scopes(lines: Sequence[Line], device: Device) -> Iterator[tuple[str, list[Line]]]:
    """Lines ever farther from a device, and what they are of."""
    yield device.name, [line for line in lines if line.device == device.name]
    yield f"{device.architecture} {_kind(device)}", [line for line in lines if line.architecture == device.architecture]
    yield f"{_kind(device)} of {device.vendor}", [line for line in lines if line.vendor == device.vendor]
    yield "other devices", list(lines)


def _kind(device: Device) -> str:
    return f"{device.kind.upper()}s"


def _pooled(lines: Sequence[Line], of: str, on: str) -> Accuracy:
    """All lines together, each with errors spread evenly from 0 to its median, to its nine of ten, and as far again."""
    weights = [min(line.measurements, _MOST) for line in lines]
    errors = np.concatenate(
        [
            np.interp(
                (np.arange(n) + 0.5) / n, (0, 0.5, 0.9, 1), (0, line.median, line.nine_of_ten, 2 * line.nine_of_ten)
            )
            for n, line in zip(weights, lines, strict=True)
        ]
    )
    median, most = np.interp((0.5, 0.9), np.linspace(0, 1, len(errors)), np.sort(errors))  # quantile() loads numpy.ma
    return Accuracy(
        of=of, on=on, median=round(float(median), 4), nine_of_ten=round(float(most), 4),
        inside=round(float(np.average([line.inside for line in lines], weights=weights)), 4),
        measurements=sum(line.measurements for line in lines),
        sources=tuple(sorted({line.source.partition(" ")[0] for line in lines})),
    )  # fmt: skip
