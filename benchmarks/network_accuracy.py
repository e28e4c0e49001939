"""Whole steps against their measurements; no fit has seen one."""

from __future__ import annotations

import logging
import sys
import time
import warnings
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pandas as pd
from networks import Step, timm_steps, transformer_steps
from small_batches import bottleneck_steps, torchvision_steps

import rooflinekit as rk
from rooflinekit.calibrate.fits import architecture_of
from rooflinekit.calibrate.refit import Refit, unmeasured
from rooflinekit.hardware.specs import load_host
from rooflinekit.ir.op import Phase
from rooflinekit.model.machine import Machine
from rooflinekit.step.prediction import predict_graph

_PATCHING = 4  # convolutions that cut an image into patches, at most


def judge_networks(data: Path, fits: Refit, share: float) -> pd.DataFrame:
    """One line a step and mode: measured and predicted seconds, and the 90 % interval."""
    warnings.filterwarnings("ignore")
    logging.disable(logging.ERROR)
    rows = []
    for step, graph in traced(_chosen(data, share)):
        kind = kind_of(graph)
        device = rk.load_device(step.gpu)
        family = tuple(g for g in fits.gpus if architecture_of(rk.load_device(g)) == architecture_of(device))
        relatives = tuple(gpu for gpu in family if gpu != step.gpu)
        measured = {"calibrated": fits.solution.values(step.gpu, relatives)} if step.gpu in fits.gpus else {}
        others = fits.without.get(step.gpu, fits.solution)
        for mode, values in (measured | {"unseen": others.values("", relatives)}).items():
            constants = unmeasured(others, fits.unseen_errors)
            if mode == "calibrated":
                spreads = {**fits.priors.spreads, **fits.gpus[step.gpu].spreads}
                constants = replace(constants, spreads=spreads)
            machine = Machine.of(device, constants).with_values(values)
            options = {"host": load_host("generic-server"), **step.options}
            found = predict_graph(graph.at(**step.sizes), machine, **options)
            low, high = found.interval(0.9)
            rows.append(
                {"mode": mode, "set": step.table, "gpu": step.gpu, **step.columns, **step.sizes}
                | {"measured_s": step.seconds, "predicted_s": step.of(found), "low_s": low, "high_s": high}
                | {"kind": kind, "regime": found.regime, "most": _most(found)}
            )
    return pd.DataFrame(rows)


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


def _chosen(data: Path, share: float) -> Iterator[Step]:
    yield from (step for step in transformer_steps(data) if step.columns["suspect"] != "nodes_slow")
    yield from torchvision_steps(data)
    yield from bottleneck_steps()
    for step in timm_steps(data):
        if zlib.crc32(step.columns["model"].encode()) % 1000 < 1000 * share:
            yield step


def traced(steps: Iterator[Step]) -> Iterator[tuple[Step, rk.Graph]]:
    """Each step with its graph; what cannot be built today is named and left out."""
    graphs: dict[str, rk.Graph | None] = {}
    start = time.perf_counter()
    for step in sorted(steps, key=lambda step: step.workload):
        if step.workload not in graphs:
            graphs.clear()  # sorted by workload: the last one is not needed again
            try:
                graphs[step.workload] = step.trace()
            except Exception as error:
                graphs[step.workload] = None
                print(f"left out: {step.workload}: {error}".splitlines()[0][:160], file=sys.stderr)
        graph = graphs[step.workload]
        if graph is not None:
            yield step, graph
    print(f"steps traced and predicted in {time.perf_counter() - start:.0f} s", file=sys.stderr)
