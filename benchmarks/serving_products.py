"""Products in fewer bits against measured ones. Called by serving_accuracy.py --products."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from rooflinekit.api.predict import machines_of
from rooflinekit.cost.table import price_all
from rooflinekit.ir.tensor import DType, TensorSpec
from rooflinekit.model.columns import work_of
from rooflinekit.model.kernels import plain_kernels
from rooflinekit.model.roofline import time_work
from rooflinekit.serving.formats import WEIGHT_FORMATS
from rooflinekit.serving.tape import Tape


def products(data: Path, sample: int = 1500) -> pd.DataFrame:
    """Products in fewer bits as a decoder's graph has them, against measured ones, of few rows and of many."""
    files = {"nvidia-h100-sxm5-80gb": "gemm_h100_sxm", "nvidia-a100-sxm4-80gb": "gemm_a100_sxm80"}
    names = {"int4_wo": "int4", "int8_wo": "int8", "fp8": "fp8-dynamic"}
    lines = []
    for gpu, file in files.items():
        (machine,) = machines_of([gpu])
        machine = machine.with_values({**machine.values, "kernel_gap": machine.values["kernel_gap_graph"]})
        table = pd.read_parquet(data / "aiconfigurator" / f"{file}.parquet")
        for (dtype, framework), part in table[table["dtype"].isin(names)].groupby(["dtype", "framework"]):
            rows = part.groupby(["m", "n", "k"], as_index=False)["latency_us"].median()
            rows = rows.sample(min(sample, len(rows)), random_state=1)
            kernels, owner = [], []
            for i, (m, n, k) in enumerate(rows[["m", "n", "k"]].astype(int).to_numpy().tolist()):
                tape = Tape(format=WEIGHT_FORMATS[names[str(dtype)]])
                tape.linear(TensorSpec(name="x", shape=(m, k), dtype=DType.BFLOAT16), "w", n)
                found = [kernel for priced in price_all(tape.ops) for kernel in plain_kernels(priced, None)]
                kernels += found
                owner += [i] * len(found)
            seconds = np.bincount(owner, weights=time_work(work_of(kernels), machine).total_s)
            ratio = seconds * 1e6 / rows["latency_us"].to_numpy()
            few = rows["m"].to_numpy() <= 64
            lines.append({
                "gpu": gpu, "weights": names[str(dtype)], "library": framework, "rows": len(rows),
                "median %": round(100 * float(np.median(abs(ratio - 1))), 1),
                "bias, 64 rows or fewer": round(float(np.median(ratio[few])), 2),
                "bias, more": round(float(np.median(ratio[~few])), 2),
            })  # fmt: skip
    return pd.DataFrame(lines)
