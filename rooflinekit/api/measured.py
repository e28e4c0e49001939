"""The keywords by which a walk rests on a step that was measured: `measured`, `measured_on` and `measured_at`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from rooflinekit.api.predict import machine_of
from rooflinekit.errors import AmbiguousDeviceError, DeviceNotFoundError, InputError
from rooflinekit.hardware.device import Device
from rooflinekit.hardware.host import Host
from rooflinekit.hardware.specs import load_device
from rooflinekit.ir.graph import Graph
from rooflinekit.present.text.progress import bar
from rooflinekit.step.execution import Execution
from rooflinekit.step.prediction import Prediction, predict_graph
from rooflinekit.step.variants import variant_of
from rooflinekit.study.transfer.evidence import Evidence, read_measured
from rooflinekit.study.transfer.transferred import Transferred, correcting
from rooflinekit.timing.machine import Machine

if TYPE_CHECKING:
    from rooflinekit.study.sweep.plan import Plan
    from rooflinekit.study.transfer.transferred import Correcting

#: Makes of a plain prediction the one that rests on the measurement.
Correction: TypeAlias = Callable[[Prediction], Transferred]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredStep:
    """A step that somebody timed: what was measured, on which device, and what of it differs from the workload."""

    evidence: Evidence
    device: Device
    at: Mapping[str, Any] = field(default_factory=dict)  # sizes, `execution`, `autocast`, `channels_last`
    machine: Machine | None = None  # the device with constants of one's own; by default with the shipped ones

    @classmethod
    def of(
        cls, measured: object, measured_on: str | Path | Device | None = None,
        measured_at: Mapping[str, Any] | None = None, *, allow_draft: bool = False, mark: str | None = None,
        rank: int | None = None,
    ) -> MeasuredStep | None:  # fmt: skip
        """From the keywords; None where nothing was measured.

        measured: what `Evidence.of` takes, or as on the command line: "31.2 ms", or a file or folder. measured_on: by
        default the device that the file names. mark, rank: of a trace, as of `Profile.read`; a bar on a terminal
        follows how it is read. Raises InputError where neither says it, or its GPU is not known.
        """
        if isinstance(measured, MeasuredStep):
            return measured
        if measured is None:
            if measured_on is not None or measured_at:
                word = "measured_at" if measured_on is None else "measured_on"
                raise InputError(f"{word}: belongs to measured, a time or a file of the step, which is missing")
            return None
        if isinstance(measured, str | Path):
            with bar(f"reading {measured}", share=True) as advance:
                evidence = read_measured(str(measured), mark=mark, rank=rank, progress=advance)
        else:
            evidence = Evidence.of(measured)
        device = _device(evidence, measured_on, allow_draft=allow_draft)
        return cls(evidence=evidence, device=device, at=dict(measured_at or {}))

    def correction(self, graph: Graph, host: Host, execution: Execution, *, burst: bool = False) -> Correction:
        """What it makes of predictions of this graph, whose sizes are numbers, and of the same at others.

        Raises InputError where it cannot be of this step.
        """
        here = self.machine or machine_of(self.device, burst=burst)
        return correcting(self.evidence, variant_of(predict_graph(graph, here, host, execution), self.at))


def correction_in(plan: Plan, step: MeasuredStep | None) -> Correcting | None:
    """What the step makes of a sweep's times; None without one.

    It was measured as the sweep's first way of execution runs it, unless it says otherwise. Raises InputError for
    clusters, several networks, and sizes left open.
    """
    if step is None:
        return None
    from rooflinekit.study.sweep.plan import Team
    from rooflinekit.study.transfer.transferred import Correcting

    first = plan.cases[0]
    setting = first.setting
    if isinstance(setting, Team):
        raise InputError("measured: a search on clusters cannot use it; call `transfer` with cluster=… for each")
    if len({id(case.graph) for case in plan.cases}) > 1:
        raise InputError("measured: the step is of one network; search only among sizes and GPUs of that network")
    sizes: dict[str, int] = {}
    for name, (first_value, *others) in plan.grid.lists.items():
        if name not in step.at and others:
            raise InputError(
                f"measured_at: {1 + len(others)} values of {name} are compared; say which was measured: measured_at="
                f"{{{name!r}: {first_value}}} (--measured-at {name}={first_value} on the command line)"
            )
        sizes[name] = step.at.get(name, first_value)
    same = replace(step, at={name: value for name, value in step.at.items() if name not in sizes})
    return Correcting(
        same.correction(first.graph.at(**sizes), setting.host, setting.execution, burst=setting.machine.burst),
        plan.grid,
    )


def corrected(
    p: Prediction, measured: object, measured_on: str | Path | Device | None, measured_at: Mapping[str, Any] | None
) -> tuple[Prediction, Correction | None]:
    """The prediction as it rests on what was measured, and what that makes of others; without, itself and None.

    A prediction that rests on a measurement already keeps to it. Raises what `MeasuredStep` raises.
    """
    step = MeasuredStep.of(measured, measured_on, measured_at)
    if step is not None:
        plain = p.plain if isinstance(p, Transferred) else p
        correct = step.correction(plain.graph, plain.host, plain.execution, burst=plain.machine.burst)
        return correct(plain), correct
    if isinstance(p, Transferred):
        return p, correcting(p.evidence, p.source)
    return p, None


def _device(evidence: Evidence, given: str | Path | Device | None, *, allow_draft: bool) -> Device:
    if given is not None:
        return given if isinstance(given, Device) else load_device(given, allow_draft=allow_draft)
    if not evidence.device:
        raise InputError(
            "measured_on: name the device that was measured, such as measured_on='nvidia-l4' (--measured-on nvidia-l4 "
            "on the command line)"
        )
    try:
        return load_device(evidence.device, allow_draft=allow_draft)
    except (DeviceNotFoundError, AmbiguousDeviceError) as error:
        raise InputError(
            f"{evidence.source} names its GPU {evidence.device!r}, which has no specification: name a known GPU "
            "as measured_on (--measured-on), or write a specification (docs/hardware.md)"
        ) from error
