"""Steps that were measured on several GPUs: of each source, by what makes two of them the same step."""

from __future__ import annotations

import hashlib
import signal
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import permutations
from pathlib import Path

import rooflinekit as rk
from benchmarks.networks.accuracy import traced
from benchmarks.networks.kernelbench import EXECUTIONS
from benchmarks.networks.kernelbench import measured as kernelbench_points
from benchmarks.networks.kernelbench_graphs import readable
from benchmarks.sources.networks import Step, timm_steps, transformer_steps
from rooflinekit.api.predict import machines_of
from rooflinekit.calibrate.local_hardware.run_record import ProfiledOp
from rooflinekit.errors import RooflinekitError
from rooflinekit.hardware.host import Host
from rooflinekit.hardware.specs import DEFAULT_HOST, load_host
from rooflinekit.step.prediction import Prediction, predict_graph
from rooflinekit.study.transfer.evidence import Evidence
from rooflinekit.timing.machine import Machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A step on a GPU: predicted, and how long it took."""

    source: str
    how: str  # eager or compiled
    network: str
    family: str  # all of one are either of those that the statistics are told by, or of those that are judged
    gpu: str
    prediction: Prediction
    seconds: float
    ops: tuple[ProfiledOp, ...] = ()  # where those and not a whole step were measured

    @property
    def evidence(self) -> object:
        """What a transfer rests on."""
        return Evidence(source="its operators", ops=self.ops) if self.ops else self.seconds


_LIMIT_S = 60  # of predicting a network on its GPUs

Pair = tuple[Measured, Measured]


def of_estimate(family: str) -> bool:
    """Whether a family of networks is of the half that constants of whole steps are told by."""
    return hashlib.sha256(f"transfer {family}".encode()).digest()[0] < 128


def kept(name: str, share: float) -> bool:
    """Whether a network is of the sample."""
    return hashlib.sha256(name.encode()).digest()[1] < 256 * share


@cache
def machine_of(gpu: str) -> Machine:
    """The GPU as it is shipped."""
    return machines_of([gpu])[0]


@cache
def host_of(name: str) -> Host:
    """A shipped host."""
    return load_host(name)


def pairs(measured: Iterator[list[Measured]]) -> Iterator[Pair]:
    """Both ways of each two that are of one step."""
    for same in measured:
        yield from permutations(same, 2)


def timm(data: Path, share: float, *, estimate: bool) -> Iterator[list[Measured]]:
    """timm's inference, of the newest release that measured a step on a GPU."""
    found = [
        step for step in timm_steps(data)
        if step.columns["step"] == "infer" and of_estimate(step.columns["family"]) == estimate
        and kept(step.columns["model"], share) and machine_of(step.gpu).device.kind == "gpu"
    ]  # fmt: skip
    yield from _steps("timm", found, "generic-server")


def neusight(data: Path, share: float, *, estimate: bool) -> Iterator[list[Measured]]:
    """NeuSight's eager transformers in fp32, whole steps."""
    found = [
        step for step in transformer_steps(data)
        if not _doubtful(step) and of_estimate(str(step.columns["model"])) == estimate
    ]  # fmt: skip
    yield from _steps("neusight", found, "generic-server")


def _doubtful(step: Step) -> bool:
    return isinstance(step.columns["suspect"], str) and step.columns["suspect"] not in ("", "nodes_slow")


def _steps(source: str, chosen: list[Step], host: str) -> Iterator[list[Measured]]:
    gpus = defaultdict[tuple[object, ...], set[str]](set)
    for step in chosen:
        gpus[_same(step)].add(step.gpu)
    chosen = [step for step in chosen if len(gpus[_same(step)]) > 1]  # others need not be traced
    last, alike = "", defaultdict[tuple[object, ...], dict[str, tuple[Step, rk.Graph]]](dict)
    for step, graph in traced(chosen):
        if step.workload != last:
            yield from _all_predicted(source, alike, host)
            last = step.workload
            alike.clear()
        before = alike[_same(step)].get(step.gpu)
        if before is None or before[0].table < step.table:
            alike[_same(step)][step.gpu] = step, graph
    yield from _all_predicted(source, alike, host)


def _all_predicted(
    source: str, alike: Mapping[tuple[object, ...], Mapping[str, tuple[Step, rk.Graph]]], host: str
) -> Iterator[list[Measured]]:
    """Those on several GPUs; a network that takes minutes to predict is named and left out."""
    for same in alike.values():
        if len(same) < 2:
            continue
        signal.signal(signal.SIGALRM, _late)
        signal.alarm(_LIMIT_S)
        found = []
        try:
            found = _predicted(source, same, host)
        except TimeoutError:
            (step, _), *_ = same.values()
            print(f"left out: {step.workload}: not predicted in {_LIMIT_S} s", file=sys.stderr)
        signal.alarm(0)
        yield found


def _late(*_: object) -> None:
    raise TimeoutError


def _same(step: Step) -> tuple[object, ...]:
    return step.workload, step.options["execution"].backend, *step.sizes.items()


def _predicted(source: str, same: Mapping[str, tuple[Step, rk.Graph]], host: str) -> list[Measured]:
    return [
        Measured(
            source=source, how=_way(step.options["execution"].backend), network=str(step.columns["model"]),
            family=str(step.columns.get("family", step.columns["model"])), gpu=gpu, seconds=step.seconds,
            prediction=predict_graph(
                graph.at(**step.sizes), machine_of(gpu), host_of(host), step.options["execution"]
            ),
        )
        for gpu, (step, graph) in same.items()
    ]  # fmt: skip


def _way(backend: str) -> str:
    return "eager" if backend == "eager" else "compiled"


_SHARED_MACHINE = (
    "nvidia-rtx-3090-ti"  # whose times in this collection look like those of a machine that others used too
)
_KERNELBENCH = {"eager": "eager", "default": "compiled"}  # modes


def kernelbench(data: Path, share: float, *, estimate: bool) -> Iterator[list[Measured]]:
    """KernelBench's problems, eager and by torch.compile, on rented hosts."""
    folder = data / "kernelbench"
    points = kernelbench_points(folder / "times.parquet", each=False)
    graphs = {problem.blob: (problem, graph) for problem, graph in readable(folder / "ops.jsonl.gz", lambda *_: None)}
    for (blob, mode), same in points.groupby(["blob", "mode"]):
        if mode not in _KERNELBENCH or blob not in graphs or not kept(blob, share):
            continue
        problem, graph = graphs[blob]
        if of_estimate(problem.name) != estimate:
            continue
        found = [_point(row, problem.name, graph, mode) for row in same.itertuples() if row.gpu != _SHARED_MACHINE]
        yield [one for one in found if one is not None]


def _point(row: tuple[object, ...], name: str, graph: rk.Graph, mode: str) -> Measured | None:
    gpu, seconds = str(row.gpu), float(row.measured_s)  # type: ignore[attr-defined]
    try:
        prediction = predict_graph(graph, machine_of(gpu), host_of(DEFAULT_HOST), EXECUTIONS[mode])
    except RooflinekitError:  # arithmetic that the GPU does not have
        return None
    return Measured(
        source="kernelbench", how=_KERNELBENCH[mode], network=name, family=name, gpu=gpu, prediction=prediction,
        seconds=seconds,
    )  # fmt: skip


SOURCES: Mapping[str, Callable[..., Iterator[list[Measured]]]] = {
    "timm": timm, "kernelbench": kernelbench, "neusight": neusight,
}  # fmt: skip
