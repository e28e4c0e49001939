"""Public measurements of attention kernels beside the prediction, by GPU, library and direction.

    python -m benchmarks.operators.attention DATA [--all] [--judge] [--unseen]
    python -m benchmarks.operators.attention DATA --choose

DATA holds `attention/attention.csv`. A row is the geometric mean of predicted / measured, the median of
|predicted / measured - 1| and how many rows there are: of shapes that take a millisecond or more, with --all of all.
Rows without a licence, and those read by a third party, are left out unless --judge is given. --unseen: each GPU by
constants that were fitted on all others, in some minutes. --choose prints by which
values of the constants that no campaign tells the rows with a licence are told best: the mean over GPUs, libraries
and directions of |ln(predicted / measured)|, one constant changed at a time.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pandas as pd

from benchmarks.sources.page_tables import markdown_lines
from benchmarks.sources.tables import read_table
from calibration.make.operators import FOLDER
from rooflinekit.calibrate.campaigns.campaign import load_campaigns
from rooflinekit.calibrate.fitting.files import constants_for
from rooflinekit.calibrate.fitting.refit import refit
from rooflinekit.cost.table import price_all
from rooflinekit.hardware.specs import load_device
from rooflinekit.ir.op import DType, Op, Phase, TensorSpec
from rooflinekit.kernels.eager import plain_kernels
from rooflinekit.kernels.kernel import Kernel
from rooflinekit.timing.machine import Machine
from rooflinekit.timing.timings import time_kernels

#: Names in the table → specifications.
GPUS = {
    "A100 80GB PCIe": "nvidia-a100-pcie-80gb", "A100 80GB SXM4": "nvidia-a100-sxm4-80gb",
    "A100 (form not told)": "nvidia-a100-sxm4-80gb", "H100 80GB SXM5": "nvidia-h100-sxm5-80gb",
    "H100 (form not told)": "nvidia-h100-sxm5-80gb", "B200": "nvidia-b200-sxm-180gb",
    "GB200": "nvidia-gb200", "RTX 3090": "nvidia-rtx-3090", "RTX 4090": "nvidia-rtx-4090",
    "RTX PRO 6000 Blackwell Server Edition": "nvidia-rtx-pro-6000-blackwell-server", "RTX A5000": "nvidia-rtx-a5000",
    "MI300X": "amd-mi300x",
}  # fmt: skip
#: Libraries in the table → backends.
LIBRARIES = {
    "cudnn": "cudnn", "torch-cudnn": "cudnn", "fa3": "flash-3", "fa2": "flash", "torch-flash": "flash",
    "torch-efficient": "efficient", "xformers": "efficient", "fa1": "flash-1", "triton": "triton", "aiter-asm": "aiter",
}  # fmt: skip
_DTYPES = {"bf16": DType.BFLOAT16, "fp16": DType.FLOAT16}
_OPEN = ("MIT", "BSD-3-Clause", "Apache-2.0")
_NONE: Mapping[str, Mapping[str, float]] = MappingProxyType({})
_KIND = "aten._scaled_dot_product_flash_attention"


def backend(row: pd.Series) -> str:
    """What runs: on AMD's GPUs PyTorch calls AOTriton for flash."""
    amd = row["library"] == "torch-flash" and GPUS[row["gpu"]].startswith("amd")
    return "aotriton" if amd else LIBRARIES[row["library"]]


def read(data: Path, *, judge: bool) -> pd.DataFrame:
    """The rows that can be predicted."""
    rows = read_table(data / "attention" / "attention.csv")
    rows = rows[rows["gpu"].isin(GPUS) & rows["library"].isin(LIBRARIES) & rows["dtype"].isin(_DTYPES)]
    rows = rows[rows["window"].isna() & (rows["dropout"].fillna(0) == 0) & ~rows["deterministic"].eq(True)]
    rows = rows[(rows["seq_q"] == rows["seq_k"]) & rows["ms_derived"].notna()]
    return rows if judge else rows[rows["licence"].isin(_OPEN)]


def ops_of(row: pd.Series) -> list[Op]:
    """The operators that SDPA calls, whichever backend runs them: forward, backward or both."""
    stored = _DTYPES[row["dtype"]]
    b, heads, shared = (int(row[name]) for name in ("batch", "heads", "kv_heads"))
    sizes = {
        "q": (heads, "seq_q", "head_dim"),
        "k": (shared, "seq_k", "head_dim"),
        "v": (shared, "seq_k", "head_dim_v"),
    }
    q, k, v = (
        TensorSpec(name=name, shape=(b, number, int(row[length]), int(row[width])), dtype=stored)
        for name, (number, length, width) in sizes.items()
    )
    out = TensorSpec(name="out", shape=(b, heads, q.shape[2], v.shape[3]), dtype=stored)
    sums = TensorSpec(name="sums", shape=q.shape[:3], dtype=DType.FLOAT32)
    attrs = MappingProxyType({"is_causal": bool(row["causal"]), "backend": backend(row)})
    forward = Op(name="attention", kind=_KIND, inputs=(q, k, v), outputs=(out, sums), attrs=attrs)
    gradients = tuple(TensorSpec(name=f"d{t.name}", shape=t.shape, dtype=stored) for t in (q, k, v))
    backward = Op(
        name="attention", kind=f"{_KIND}_backward", phase=Phase.BACKWARD, attrs=attrs, outputs=gradients,
        inputs=(TensorSpec(name="dout", shape=out.shape, dtype=stored), q, k, v, out, sums),
    )  # fmt: skip
    return {"fwd": [forward], "bwd": [backward], "fwd+bwd": [forward, backward]}[row["pass"]]


def machine_of(gpu: str) -> Machine:
    """With the shipped constants."""
    device = load_device(GPUS[gpu])
    return Machine.of(device, constants_for(device))


def fitted_without() -> dict[str, dict[str, float]]:
    """Of each GPU that is in the fits, the constants that all others tell."""
    fits = refit(load_campaigns(FOLDER))
    return {gpu: found.values(gpu, fits.relatives[gpu]) for gpu, found in fits.without.items()}


def kernels_of(rows: pd.DataFrame) -> dict[str, list[tuple[int, Kernel]]]:
    """The kernels of each GPU's rows, with the rows that they are of."""
    found = {}
    for gpu, same in rows.reset_index(drop=True).groupby("gpu"):
        owned = [(place, op) for place, row in same.iterrows() for op in ops_of(row)]
        priced = price_all([op for _, op in owned])
        device = load_device(GPUS[str(gpu)])
        found[str(gpu)] = [
            (o, k) for (o, _), p in zip(owned, priced, strict=True) for k in plain_kernels(p, None, device)
        ]
    return found


def predicted(
    kernels: Mapping[str, list[tuple[int, Kernel]]], count: int, unseen: Mapping[str, Mapping[str, float]] = _NONE,
    **values: float,
) -> np.ndarray:  # fmt: skip
    """Seconds of each of so many rows; of GPUs in `unseen` by their values there, `values` in place of the shipped."""
    found = np.zeros(count)
    for gpu, owned in kernels.items():
        machine = machine_of(gpu)
        own = {**unseen.get(GPUS[gpu], machine.values), **values}
        timings = time_kernels([k for _, k in owned], machine.with_values(own))
        np.add.at(found, [o for o, _ in owned], [timing.total_s for timing in timings])
    return found


#: Constants that no campaign tells, and by which factors each is tried.
CHOSEN = (
    "attention_gradient", "cudnn_attention", "tensor_memory_attention", "efficient_attention",
    "efficient_wide_gradient", "triton_attention",
)  # fmt: skip
FACTORS = (0.8, 0.88, 0.94, 1.0, 1.06, 1.13, 1.25)


def choices(rows: pd.DataFrame) -> pd.DataFrame:
    """The mean error in per cent by each constant's factor, the others as shipped; each group counts the same."""
    kernels, measured = kernels_of(rows), 1e-3 * rows["ms_derived"].to_numpy()
    groups = [rows["gpu"].to_numpy(), rows.apply(backend, axis=1).to_numpy(), rows["pass"].to_numpy()]
    shipped = machine_of(next(iter(kernels))).values

    def error(**values: float) -> float:
        off = pd.Series(np.abs(np.log(predicted(kernels, len(rows), **values) / measured)))
        return 100 * float(off.groupby(groups).mean().mean())

    return pd.DataFrame(
        {"constant": name, "shipped": shipped[name]}
        | {f"× {factor}": round(error(**{name: factor * shipped[name]}), 2) for factor in FACTORS}
        for name in CHOSEN
    )


def table(rows: pd.DataFrame, predicted_s: np.ndarray) -> pd.DataFrame:
    """A row a GPU, library and direction."""
    ratio = predicted_s / (1e-3 * rows["ms_derived"].to_numpy())
    keys = rows["gpu"].map(GPUS).rename("GPU"), rows.apply(backend, axis=1).rename("kernel"), rows["pass"]
    grouped = pd.DataFrame({"log": np.log(ratio), "error": np.abs(ratio - 1)}).set_index(rows.index).groupby(list(keys))
    return pd.DataFrame({
        "n": grouped.size(), "bias": np.exp(grouped["log"].mean()).round(2),
        "median %": (100 * grouped["error"].median()).round(1),
    })  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--all", action="store_true", help="short ones too")
    parser.add_argument("--judge", action="store_true", help="rows that no constant may be fitted on too")
    parser.add_argument(
        "--choose", action="store_true", help="errors by the values of constants that no campaign tells"
    )
    parser.add_argument("--unseen", action="store_true", help="each GPU by constants that all others tell")
    options = parser.parse_args(arguments)
    rows = read(options.data, judge=options.judge)
    rows = rows if options.all else rows[rows["ms_derived"] >= 1]
    if options.choose:
        print(choices(read(options.data, judge=False).query("ms_derived >= 1")).to_string(index=False))
        return
    unseen = fitted_without() if options.unseen else _NONE
    found = table(rows, predicted(kernels_of(rows), len(rows), unseen)).reset_index()
    print(markdown_lines(list(found.columns), found.astype(str).to_numpy().tolist()))


if __name__ == "__main__":
    main()
