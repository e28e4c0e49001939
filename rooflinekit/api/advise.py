"""The walk that says what would make a step faster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rooflinekit.api.measured import corrected
from rooflinekit.hardware.device import Device
from rooflinekit.ir.arguments import checked
from rooflinekit.step.prediction import Prediction
from rooflinekit.study.explain import advice
from rooflinekit.study.transfer.transferred import Transferred


@checked
def advise(
    p: Prediction,
    gpus: Sequence[str | Path | Device] = (),
    *,
    measured: object = None,
    measured_on: str | Path | Device | None = None,
    measured_at: Mapping[str, Any] | None = None,
) -> advice.Advice:
    """What would make this step faster, each candidate predicted again, ranked by the time that it saves.

    Tried: twice the batch, channels last, autocast in both formats, torch.compile and CUDA graphs, autocast together
    with each torch.compile, copies from pinned memory, layers without recurrence in the place of those with it, the
    optimizer's fused form, and the other GPUs given. What cannot be predicted, or does not fit the memory, is left out,
    and said with the reason. The model is traced again where a candidate asks for it.

    measured, measured_on, measured_at: a step that was timed somewhere, on which the step and all candidates then rest;
    see `compare_gpus`. A `Transferred` prediction rests on its own measurement.

    Raises DeviceNotFoundError or SpecError for the GPUs, and InputError for a measurement that cannot be of this step.

    >>> print(advise(p, gpus=["nvidia-l40s"]))  # doctest: +SKIP
    """
    _, correct = corrected(p, measured, measured_on, measured_at)
    return advice.advise(p.plain if isinstance(p, Transferred) else p, gpus, correct)
