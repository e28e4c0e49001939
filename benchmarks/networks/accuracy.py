"""Whole steps against their measurements; no fit has seen one."""

from __future__ import annotations

import gc
import logging
import os
import sys
import time
import warnings
import zlib
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import cache, partial
from itertools import groupby
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pandas as pd

import rooflinekit as rk
from benchmarks.sources.graph_store import NotTraced, stored
from benchmarks.sources.halves import in_first_half
from benchmarks.sources.networks import Step, timm_steps, transformer_steps
from benchmarks.sources.small_batches import bottleneck_steps, torchvision_steps
from rooflinekit.calibrate.fitting.files import architecture_of, constants_for, of_stranger
from rooflinekit.calibrate.fitting.refit import Refit, unmeasured
from rooflinekit.hardware.specs import load_host
from rooflinekit.ir.op import Phase
from rooflinekit.step.prediction import predict_graph
from rooflinekit.timing.families import complete
from rooflinekit.timing.machine import Machine

_PATCHING = 4  # convolutions that cut an image into patches, at most
_SHARED: dict[str, Any] = {}  # what the copies of this process start with


def judge_networks(data: Path, fits: Refit, share: float) -> pd.DataFrame:
    """One line a step and mode: measured and predicted seconds, and the 90 % interval.

    Every core takes a part of the networks, in a copy of this process, so that the fits need not be sent.
    """
    start = time.perf_counter()
    parts = os.cpu_count() or 1
    _SHARED.update(data=data, fits=fits, share=share, parts=parts)
    with ProcessPoolExecutor(parts, mp_context=get_context("fork")) as pool:
        tables = list(pool.map(_judge_part, range(parts)))
    print(f"steps traced and predicted in {time.perf_counter() - start:.0f} s", file=sys.stderr)
    return pd.concat(tables, ignore_index=True)


def _judge_part(part: int) -> pd.DataFrame:
    """The steps of the workloads that fall to this part, by a hash of their names."""
    warnings.filterwarnings("ignore")
    logging.disable(logging.ERROR)
    gc.freeze()  # what torch and sympy have made by now stays: no need to walk it at each collection
    data, fits, share, parts = _SHARED.values()
    machines = cache(partial(_machines, fits))
    mine = (step for step in _chosen(data, share) if zlib.crc32(f"part {step.workload}".encode()) % parts == part)
    rows = []
    for step, graph in traced(mine):
        kind, at = kind_of(graph), graph.at(**step.sizes)
        for mode, machine in machines(step.gpu).items():
            found = predict_graph(at, machine, **{"host": load_host("generic-server"), **step.options})
            low, high = found.interval(0.9)
            rows.append(
                {"mode": mode, "set": step.table, "gpu": step.gpu, **step.columns, **step.sizes}
                | {"measured_s": step.seconds, "predicted_s": step.of(found), "low_s": low, "high_s": high}
                | {"kind": kind, "regime": found.regime, "most": _most(found)}
            )
    return pd.DataFrame(rows)


def _machines(fits: Refit, gpu: str) -> dict[str, Machine]:
    """The GPU by mode: calibrated where it was measured, and as if it had not been. A CPU has the constants of CPUs."""
    device = rk.load_device(gpu)
    if device.kind == "cpu":
        return {"unseen": Machine.of(device, constants_for(device))}
    family = tuple(g for g in fits.gpus if architecture_of(rk.load_device(g)) == architecture_of(device))
    relatives = tuple(other for other in family if other != gpu)
    others = fits.without.get(gpu, fits.solution)
    constants = unmeasured(others, fits.unseen_errors, fits.unseen_starts, fits.unseen_times)
    constants = of_stranger(replace(constants, spreads=complete(constants.spreads)), device)
    found = {}
    if gpu in fits.gpus:
        own = replace(constants, spreads={**complete(fits.priors.spreads), **fits.gpus[gpu].spreads})
        found["calibrated"] = Machine.of(device, own).with_values(fits.solution.values(gpu, relatives))
    return found | {"unseen": Machine.of(device, constants).with_values(others.values("", relatives))}


def kind_of(graph: rk.Graph) -> str:
    """What a network is made of: plain CNN, depthwise CNN, ViT, hybrid, MLP, or transformer (of words)."""
    kinds = [p.op.kind for p in graph.priced if p.op.phase is Phase.FORWARD]
    convolutions = [p.op for p in graph.priced if p.op.kind == "aten.convolution"]
    attends = any("scaled_dot_product" in kind or kind in ("aten._softmax", "aten.softmax") for kind in kinds)
    if not convolutions:
        return "transformer" if attends else "MLP"
    if attends:
        return "ViT" if len(convolutions) <= _PATCHING else "hybrid"
    if any(op.attrs["groups"] > 1 and int(op.inputs[1].shape[1]) == 1 for op in convolutions):
        return "depthwise CNN"
    linear = sum(kind in ("aten.addmm", "aten.mm", "aten.bmm") for kind in kinds)
    return "plain CNN" if len(convolutions) > linear else "MLP"


def _most(found: rk.Prediction) -> str:
    """The largest term, and the kind of op that takes most of the GPU's time."""
    term = max(found.terms().items(), key=lambda item: item[1])[0]
    return f"{term}; {found.by_kind()['total_s'].idxmax().removeprefix('aten.')}"


def sound_transformer_steps(data: Path) -> Iterator[Step]:
    """Those that their own nodes do not contradict."""
    return (step for step in transformer_steps(data) if step.columns["suspect"] not in ("nodes_slow", "fwd_inflated"))


def _chosen(data: Path, share: float) -> Iterator[Step]:
    yield from sound_transformer_steps(data)
    yield from torchvision_steps(data)
    yield from bottleneck_steps()
    for step in timm_steps(data):
        if fitted_on(step) or normalized_by_another(step):
            continue
        if zlib.crc32(step.columns["model"].encode()) % 1000 < 1000 * share:
            yield step


def fitted_on(step: Step) -> bool:
    """Whether the constants of CPUs have seen it: half of the families (calibration/make/cpu.py)."""
    return rk.load_device(step.gpu).kind == "cpu" and in_first_half(step.columns["family"])


#: Of timm, with what release of PyTorch it was measured: up to 1.13 its TResNets, and models named so, call the package
#: inplace_abn, whose kernels are slow with channels last (densenet264d_iabn takes 4.4 times as long as with channels
#: first; resnetblur50, with the blurred pooling of a TResNet, 0.9 times). Today's have a batch normalization instead.
_NORMALIZED_BY_ANOTHER = ("tresnet", "iabn")


def normalized_by_another(step: Step) -> bool:
    """Whether a model was measured with another module than the one that is traced today."""
    old = "torch 1." in step.table
    return old and any(word in step.columns["model"] for word in _NORMALIZED_BY_ANOTHER)


def traced(steps: Iterable[Step]) -> Iterator[tuple[Step, rk.Graph]]:
    """Each step with its graph, those of one workload after each other; what cannot be built is named and left out."""
    together = sorted(steps, key=lambda step: step.workload)
    for workload, group in groupby(together, key=lambda step: step.workload):
        same = list(group)
        graph = stored(workload, same[0].trace)
        if isinstance(graph, NotTraced):
            print(f"left out: {workload}: {graph.reason}", file=sys.stderr)
        else:
            yield from ((step, graph) for step in same)
