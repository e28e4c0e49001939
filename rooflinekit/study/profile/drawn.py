"""Campaigns out of traces: kernels of operators whose shapes were recorded, as measured ops."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from rooflinekit.calibrate.campaigns.campaign import Campaign
from rooflinekit.calibrate.campaigns.operators import OPS
from rooflinekit.calibrate.local_hardware import trace as traces
from rooflinekit.calibrate.local_hardware.trace import Progress, Trace
from rooflinekit.errors import CampaignError
from rooflinekit.hardware.specs import load_device

_FORMATS = {"float": "fp32", "c10::Half": "fp16", "c10::BFloat16": "bf16"}
_TF32 = ("tf32", "s1688", "tensorop_s")  # in the names of kernels that multiply fp32 as tf32


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """What a trace says of ops: rows of a campaign, and calls that say nothing, by the reason."""

    campaign: Campaign
    refused: Mapping[str, int]
    refused_s: float  # of kernels whose calls became no row
    seconds: float  # of all kernels


@dataclass(frozen=True, slots=True)
class Inputs:
    """The recorded arguments of a call."""

    dims: Sequence[Any]
    types: Sequence[Any]
    strides: Sequence[Any]
    values: Sequence[Any]

    @classmethod
    def read(cls, text: str) -> Inputs:
        """Reads them from a trace's JSON; lists of another form are empty."""
        given = json.loads(text)
        return cls(*(one if isinstance(one, list) else [] for one in given))

    def shape(self, place: int) -> tuple[int, ...]:
        """Sizes of an argument. Raises _RefusedError where it is no tensor."""
        found = self.dims[place] if place < len(self.dims) else None
        if not isinstance(found, list) or not found or not all(isinstance(n, int) and n > 0 for n in found):
            raise _RefusedError("sizes are not recorded, or 0")
        return tuple(found)

    def value(self, place: int) -> Any:
        """A number, list or truth value among the arguments. Raises _RefusedError."""
        text = self.values[place] if place < len(self.values) else ""
        try:
            return json.loads(str(text).lower().replace("none", "null"))
        except ValueError:
            raise _RefusedError("values of arguments are not recorded") from None


class _RefusedError(Exception):
    """A call from which no row can be made, with the reason."""


def draw_all(files: Sequence[Path], gpu: str | None, licence: str, progress: Progress | None = None) -> Drawn:
    """Rows for all operators of the traces that a campaign can hold, with the median of equal ones and their count.

    gpu: name, alias or file of the device; by default as the traces' own name for it. Raises CampaignError for a
    trace without kernels or without recorded shapes, of several devices, or where no operator can be held.
    """
    rows: dict[tuple[tuple[str, Any], ...], list[float]] = defaultdict(list)
    refused: Counter[str] = Counter()
    devices: dict[str, None] = {}
    seconds = refused_s = 0.0
    for place, file in enumerate(files):
        trace = traces.read_trace(file, traces.part(progress, place, len(files)))
        devices |= dict.fromkeys(trace.devices)
        for name, inputs, kernels, taken_s in _calls(trace):
            seconds += taken_s
            try:
                rows[_row(name, inputs, kernels)].append(taken_s)
            except _RefusedError as reason:
                refused.update([f"{name}: {reason}"] * bool(name))
                refused_s += taken_s
    if gpu is None and len(devices) != 1:
        named = ", ".join(devices) or "none"
        raise CampaignError(f"{files[0]}: the traces name {named} as their device; name one as --gpu")
    device, source = load_device(gpu if gpu is not None else next(iter(devices))), " ".join(file.name for file in files)
    if not rows:
        most = ", ".join(reason for reason, _ in refused.most_common(3))
        raise CampaignError(f"{source}: no operator of it can be a row of a campaign ({most})")
    table = pd.DataFrame([{**dict(key), "seconds": float(np.median(s)), "count": len(s)} for key, s in rows.items()])
    campaign = Campaign(
        gpu=device.name, source=f"traces {source}", licence=licence, timing="profiler",
        rows=table.sort_values(["op", "seconds"], ignore_index=True),
    )  # fmt: skip
    return Drawn(campaign=campaign, refused=dict(refused.most_common()), refused_s=refused_s, seconds=seconds)


def _calls(trace: Trace) -> Iterator[tuple[str, str, str, float]]:
    """Each call's name and inputs as recorded, the names of its kernels and their seconds; without a name and inputs
    those of kernels that no call has launched.
    """
    if not len(trace.kernels):
        raise CampaignError(f"{trace.file}: holds no kernels; record it with ProfilerActivity.CUDA")
    if not trace.inputs:
        raise CampaignError(f"{trace.file}: holds no shapes; record it with torch.profiler.profile(record_shapes=True)")
    calls, kernels = traces.in_order(trace.calls), traces.launched_kernels(trace)
    kernels = kernels.assign(seconds=traces.seconds_of(kernels), call=traces.callers(kernels, calls))
    yield "", "", "", float(kernels["seconds"][kernels["call"] < 0].sum())
    described = calls[["name", "inputs"]].to_numpy()
    for _, own in kernels[kernels["call"] >= 0].groupby("call"):
        called, inputs = described[own["call"].iloc[0]]
        names = " ".join(trace.names[k] for k in own["name"])
        yield trace.names[called], trace.inputs[inputs] if inputs >= 0 else "", names, float(own["seconds"].sum())


def _row(name: str, recorded: str, kernels: str) -> tuple[tuple[str, Any], ...]:
    if not recorded:
        raise _RefusedError("sizes are not recorded")
    inputs = Inputs.read(recorded)
    make = _ROWS.get(name.removeprefix("aten::").removesuffix("_"))
    if make is None:
        raise _RefusedError("campaigns hold no such operator")
    made = make(inputs)
    dtype = _FORMATS.get(str(inputs.types[0]) if inputs.types else "")
    if dtype is None:
        raise _RefusedError("campaigns hold no such format")
    if OPS[made["op"]].family in ("product", "convolution") and dtype == "fp32":
        dtype = "tf32" if any(word in kernels.lower() for word in _TF32) else dtype
    return tuple({**made, "dtype": dtype}.items())


def _product(op: str, place: int, inputs: Inputs) -> dict[str, Any]:
    (*batch, m, k), (*_, other, n) = inputs.shape(place), inputs.shape(place + 1)
    if k != other:
        raise _RefusedError("its sizes are no product's")
    return {"op": op, **dict(zip("b", batch, strict=False)), "m": m, "n": n, "k": k}


def _rows_of(shape: tuple[int, ...]) -> dict[str, int]:
    return {"rows": prod(shape[:-1]), "cols": shape[-1]}


def _elementwise(op: str, tensors: int, inputs: Inputs) -> dict[str, Any]:
    first = inputs.shape(0)
    if tensors == 2 and inputs.shape(1) != first:
        raise _RefusedError("broadcasts")
    return {"op": op, **_rows_of(first)}


def _softmax(inputs: Inputs) -> dict[str, Any]:
    shape, dim = inputs.shape(0), inputs.value(1)
    if dim not in (-1, len(shape) - 1):
        raise _RefusedError("not over the last dimension")
    return {"op": "softmax", **_rows_of(shape)}


def _layer_norm(inputs: Inputs) -> dict[str, Any]:
    shape, normalized = inputs.shape(0), inputs.value(1)
    cols = prod(normalized) if isinstance(normalized, list) and normalized else 0
    if not cols or prod(shape) % cols:
        raise _RefusedError("its sizes are no layer norm's")
    return {"op": "layernorm", "rows": prod(shape) // cols, "cols": cols}


def _convolution(inputs: Inputs) -> dict[str, Any]:
    image, weight = inputs.shape(0), inputs.shape(1)
    padding, stride, dilation, groups = (inputs.value(place) for place in (2, 3, 4, 5))
    if len(image) != 4 or dilation not in ([1, 1], [1]):
        raise _RefusedError("campaigns hold 2-D convolutions without dilation")
    (b, c_in, h, w), (c_out, _, r, s) = image, weight
    pads, strides = (one * 2 if len(one) == 1 else one for one in (padding, stride))
    steps = inputs.strides[0] if inputs.strides else None
    last = isinstance(steps, list) and len(steps) == 4 and steps[1] == 1 and c_in > 1
    return {
        "op": "conv_fwd", "b": b, "c_in": c_in, "c_out": c_out, "h": h, "w": w, "r": r, "s": s, "pad_h": pads[0],
        "pad_w": pads[1], "stride_h": strides[0], "stride_w": strides[1], "groups": groups,
        "channels_last": int(last),
    }  # fmt: skip


def _flash(inputs: Inputs) -> dict[str, Any]:
    (b, s, heads, d), (_, t, kv_heads, _) = inputs.shape(0), inputs.shape(1)
    if inputs.value(7):
        raise _RefusedError("attention with dropout")
    return {
        "op": "attention", "b": b, "s": s, "t": t, "heads": heads, "kv_heads": kv_heads, "d": d,
        "causal": int(bool(inputs.value(8))),
    }  # fmt: skip


#: By operator, without "aten::" and the underscore of what works in place: the row that its sizes make.
_ROWS: Mapping[str, Callable[[Inputs], dict[str, Any]]] = {
    "mm": partial(_product, "mm", 0),
    "addmm": partial(_product, "mm", 1),
    "bmm": partial(_product, "bmm", 0),
    "baddbmm": partial(_product, "bmm", 1),
    "_softmax": _softmax,
    "native_layer_norm": _layer_norm,
    "cudnn_convolution": _convolution,
    "miopen_convolution": _convolution,
    "_flash_attention_forward": _flash,
    **{name: partial(_elementwise, name, 2) for name in ("add", "mul", "div")},
    **{name: partial(_elementwise, name, 1) for name in ("relu", "gelu", "tanh")},
}
