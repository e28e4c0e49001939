"""Operators that were measured one by one, as steps to transfer: profiled traces, and NeuSight's nodes of networks."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch.nn import functional

import rooflinekit as rk
from benchmarks.sources.operators import gpu_name
from benchmarks.sources.tables import read_table
from benchmarks.transfer.sources import Measured, host_of, machine_of
from rooflinekit.calibrate.local_hardware.run_record import ProfiledOp
from rooflinekit.errors import RooflinekitError
from rooflinekit.step.prediction import predict_graph
from rooflinekit.study.errors.components import scaled
from rooflinekit.study.profile.drawn import draw_all

_DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
_FREE = ("aten.empty", "aten.detach")
_NO_HOST = 1e-6  # of its times: what was measured is of kernels alone
_FLOORS = 5  # times what a node without a kernel reads, below which a node tells nothing of its kernel
_LEAST = 2  # operators of a half of a trace
#: What recorded a trace, by the first word of its file: not all name their device, and one by a customer's number.
_TRACED_ON = {
    "a100": "nvidia-a100-sxm4-40gb", "b200": "nvidia-b200-sxm-180gb", "compiled": "amd-mi300x",
    "h100": "nvidia-h100-sxm5-80gb", "mi300x": "amd-mi300x", "v100": "nvidia-v100-sxm2-32gb",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Row:
    """A measured operator, by a campaign's word for it."""

    op: str
    sizes: dict[str, Any]
    dtype: str
    seconds: float

    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Of its arguments, as a profiler records them."""
        size = {name: int(value) for name, value in self.sizes.items() if value == value}
        if self.op in ("mm", "addmm"):
            bias = ((size["n"],),) if self.op == "addmm" else ()
            return (*bias, (size["m"], size["k"]), (size["k"], size["n"]))
        if self.op == "bmm":
            return (size["b"], size["m"], size["k"]), (size["b"], size["k"], size["n"])
        if self.op == "conv_fwd":
            weight = (size["c_out"], size["c_in"] // size["groups"], size["r"], size["s"])
            return (size["b"], size["c_in"], size["h"], size["w"]), weight
        if self.op == "attention":
            key = (size["b"], size["kv_heads"], size["t"], size["d"])
            return (size["b"], size["heads"], size["s"], size["d"]), key, key
        one = (size["rows"], size["cols"])
        return (one, one) if self.op in ("add", "mul", "div") else (one,)


class _Script(torch.nn.Module):
    """Calls each operator once, in order, on tensors of its own."""

    def __init__(self, rows: Sequence[Row]) -> None:
        super().__init__()
        self.rows = rows

    def forward(self, start: torch.Tensor) -> torch.Tensor:
        for row in self.rows:
            _call(row, [torch.empty(shape, dtype=_DTYPES[row.dtype]) for shape in row.shapes()])
        return start


def _call(row: Row, args: list[torch.Tensor]) -> None:
    size = row.sizes
    if row.op == "conv_fwd":
        if size["channels_last"]:
            args = [one.contiguous(memory_format=torch.channels_last) for one in args]
        steps, pads = (tuple(int(size[f"{name}_{side}"]) for side in "hw") for name in ("stride", "pad"))
        functional.conv2d(args[0], args[1], None, steps, pads, 1, int(size["groups"]))
    elif row.op == "attention":
        functional.scaled_dot_product_attention(*args, is_causal=bool(size["causal"]))
    elif row.op == "softmax":
        torch.softmax(args[0], -1)
    elif row.op == "layernorm":
        functional.layer_norm(args[0], args[0].shape[-1:], *(torch.empty(args[0].shape[-1:]) for _ in range(2)))
    elif row.op in ("addu", "mulu", "divu", "powu"):
        getattr(torch, row.op[:-1])(args[0], 3.0)
    else:
        getattr(functional if row.op in ("gelu", "relu") else torch, row.op)(*args)


#: A profiler's word for an op, where a campaign has another.
_NAMES = {
    "conv_fwd": "convolution", "attention": "_scaled_dot_product_flash_attention", "softmax": "_softmax",
    "layernorm": "native_layer_norm", "addu": "add", "mulu": "mul", "divu": "div", "powu": "pow",
}  # fmt: skip


def _graphs(rows: Sequence[Row], halves: Sequence[Sequence[int]]) -> list[rk.Graph]:
    """Of the rows of each half, traced together, so that no two ops of them have one name."""
    products = any(row.dtype == "tf32" and row.op != "conv_fwd" for row in rows)
    # by default as PyTorch's: in convolutions alone
    graph = rk.trace(_Script(rows), rk.Input(1, 1), **{"tf32": True} if products else {})
    priced = [one for one in graph.priced if not one.op.kind.startswith((*_FREE, "aten.clone", "aten._to_copy"))]
    if len(priced) != len(rows):
        raise ValueError(f"{len(rows)} operators became {len(priced)}: {[one.op.kind for one in priced]}")
    return [replace(graph, priced=tuple(priced[i] for i in half)) for half in halves]


def _measured(source: str, network: str, gpu: str, graph: rk.Graph, rows: Sequence[Row]) -> Measured:
    return Measured(
        source=source, how="operators", network=network, family=network, gpu=gpu,
        prediction=predict_graph(
            graph, machine_of(gpu), scaled(host_of("generic-server"), _NO_HOST), rk.Execution(backend="cuda-graph")
        ),
        seconds=sum(row.seconds for row in rows),
        ops=tuple(
            ProfiledOp(
                name=f"aten::{_NAMES.get(row.op, row.op)}", depth=0, seconds=row.seconds, shapes=row.shapes()
            )
            for row in rows
        ),
    )  # fmt: skip


def traces(data: Path, share: float, *, estimate: bool) -> Iterator[list[Measured]]:
    """One half of the shapes of each profiled trace from the other, on the GPU that it was recorded on."""
    del share
    for file in () if estimate else sorted((data / "traces").glob("*.json.gz")):
        try:
            campaign = draw_all([file], _TRACED_ON[file.name.partition("_")[0]], "none").campaign
            columns = [name for name in campaign.rows if name not in ("op", "dtype", "seconds", "count")]
            rows = [
                Row(str(row["op"]), {name: row[name] for name in columns}, str(row["dtype"]), float(row["seconds"]))
                for _, row in campaign.rows.iterrows()
            ]
            digest = [hashlib.sha256(str((row.op, row.shapes())).encode()).digest()[0] % 2 for row in rows]
            halves = [[i for i, one in enumerate(digest) if one == half] for half in (0, 1)]
            if min(map(len, halves)) < _LEAST:
                continue
            graphs = _graphs(rows, halves)
        except RooflinekitError as error:
            print(f"{file.name}: {error}")
            continue
        yield [
            _measured("traces", file.name.split("__")[0], campaign.gpu, graph, [rows[i] for i in half])
            for graph, half in zip(graphs, halves, strict=True)
        ]


def nodes(data: Path, share: float, *, estimate: bool) -> Iterator[list[Measured]]:
    """NeuSight's nodes of one layer of a network, forward, each timed alone: summed, on all GPUs that ran it."""
    del share
    files = [data / "neusight" / "model_nodes.parquet", data / "neusight" / "more" / "model_nodes.parquet"]
    table = pd.concat([read_table(file) for file in files if file.is_file()])
    table = table[table["suspect"].isna() | (table["suspect"] == "")]
    for (model, mode, batch, seq), part in table.groupby(["model", "mode", "batch", "seq"], observed=True):
        if not estimate:
            found = {str(gpu): _rows_of_nodes(own) for gpu, own in part.groupby("gpu", observed=True)}
            yield _alike(f"{model} {mode} {batch} {seq}", {gpu: rows for gpu, rows in found.items() if rows})


def _rows_of_nodes(table: pd.DataFrame) -> dict[int, Row]:
    """By number of the node."""
    kernels = [ast.literal_eval(text) if isinstance(text, str) else list(text) for text in table["ns_fwd_kernels"]]
    empty = table["fwd_us"][[not one for one in kernels]]
    floor = float(empty[empty > 0].median())
    return {
        int(node): _row_of_node(kernel[0], (us - floor) * 1e-6)
        for node, kernel, us in zip(table["node_index"], kernels, table["fwd_us"], strict=True)
        if kernel and kernel[0][0] != "MEM" and us > _FLOORS * floor
    }


def _row_of_node(kernel: tuple[str, tuple[int, ...]], seconds: float) -> Row:
    name, sizes = kernel
    if name == "Linear":  # rows, contraction, columns
        return Row("addmm", dict(zip("mkn", sizes, strict=True)), "fp32", seconds)
    if name == "BMM":
        return Row("bmm", dict(zip("bmkn", sizes, strict=True)), "fp32", seconds)
    op = {"ln": "layernorm"}.get(word := name.removeprefix("VEC"), word)
    return Row(op, dict(zip(("rows", "cols"), sizes, strict=True)), "fp32", seconds)


def _alike(network: str, by_gpu: dict[str, dict[int, Row]]) -> list[Measured]:
    """The nodes that all GPUs tell of, on each."""
    if len(by_gpu) < 2:
        return []
    common = sorted(set.intersection(*(set(rows) for rows in by_gpu.values())))
    graph: rk.Graph | None = None
    found = []
    for gpu, own in by_gpu.items():
        rows = [own[i] for i in common]
        if graph is None:
            (graph,) = _graphs(rows, [range(len(rows))])
        name = gpu_name(gpu)
        if name is not None:
            found.append(_measured("neusight nodes", network, name, graph, rows))
    return found


SOURCES = {"traces": traces, "nodes": nodes}
