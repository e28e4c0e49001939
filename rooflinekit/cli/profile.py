"""The subcommand that reads a trace of torch.profiler, beside a prediction where a model is named."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rooflinekit.cli.described import Workload
from rooflinekit.cli.measured import RankOption
from rooflinekit.cli.options import JsonOption, print_json
from rooflinekit.cli.workload import describes_workload
from rooflinekit.errors import InputError
from rooflinekit.present.text.progress import bar

if TYPE_CHECKING:
    from rooflinekit.hardware.device import Device
    from rooflinekit.step.prediction import Prediction
    from rooflinekit.study.profile.profile import Profile, ProfileComparison

_TARGET_HELP = "the model that was profiled: timm:NAME, transformers:NAME, FILE.py:NAME, or package.module:name"


@functools.partial(describes_workload, needs_gpu=False, needs_input=False)
def profile(
    workload: Workload,
    trace: Annotated[
        Path,
        typer.Argument(
            metavar="TRACE.json",
            help="the file of export_chrome_trace, also .json.gz; a folder with one a rank; or the word sample",
        ),
    ],
    target: Annotated[str | None, typer.Argument(metavar="TARGET", help=_TARGET_HELP)] = None,
    mark: Annotated[
        str | None,
        typer.Option(
            help="the record_function that marks a step; by default ProfilerStep#, the longest, or what repeats"
        ),
    ] = None,
    rank: RankOption = None,
    as_json: JsonOption = False,
) -> None:
    """What a trace of torch.profiler says, beside a prediction.

    The regime, and where the model is named its ops beside those of a prediction. --gpu is the specification of the
    hardware, by default that of the name in the trace.
    `rooflinekit profile sample` reads a small trace that is shipped.
    Example: rooflinekit profile trace.json.gz timm:resnet50 --input batch,3,224,224 --batch 32 --gpu nvidia-l4
    """
    if len(workload.gpus) > 1:
        raise InputError(f"--gpu: one device was profiled; got {len(workload.gpus)} specifications")
    if target is None and workload.called:
        raise InputError("--input belongs to a TARGET, the model that was profiled; name it behind the trace")
    if target is not None and not workload.called:
        raise InputError("--input is missing: the sizes that the model was called with, such as --input 32,3,224,224")
    from rooflinekit.hardware.specs import load_device

    devices = [load_device(gpu, allow_draft=workload.allow_draft) for gpu in workload.gpus]  # before the slow part
    from rooflinekit.study.profile.profile import read_profile

    with bar(f"reading {trace.name}", share=True) as advance:
        found = read_profile(trace, rank=rank, mark=mark, progress=advance)
    beside = None if target is None else found.beside(_predicted(workload, target, found))
    if as_json:
        shown: Mapping[str, object] = {"profile": found.to_dict()} if beside is None else beside.to_dict()
        print_json("profile", shown)
        return
    _print(found, beside, next(iter(devices), None))


def _predicted(workload: Workload, target: str, found: Profile) -> Prediction:
    if not workload.gpus:
        if not found.device:
            raise InputError("--gpu is missing: the trace does not say which device it was, such as --gpu nvidia-l4")
        workload = replace(workload, gpus=(found.device,))
    ((prediction,),) = workload.predict(target)
    return prediction


def _print(found: Profile, beside: ProfileComparison | None, device: Device | None) -> None:
    from rooflinekit.present.text import profiles as profile_text

    if beside is None:
        profile_text.print_profile(found, device)
    else:
        profile_text.print_profile_comparison(beside)
