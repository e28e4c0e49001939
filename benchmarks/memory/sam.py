"""Peak memory of Segment Anything's image encoder against segment-anything-fast, which changed it step by step.

    python -m benchmarks.memory.sam DATA

The encoder holds nearly all of the peak; its prompts and masks are left out. Hugging Face's of the same sizes is
traced, with scores of attention in memory ("fp32", "bf16") and their softmax in their own format, as the original has
it. Rows are of an A100 of 40 GB; what is printed there is `torch.cuda.max_memory_allocated`. Compiled rows and those of
other kernels are not described.
"""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pandas as pd
import torch

import rooflinekit as rk
from benchmarks.sources.command import asked
from benchmarks.sources.tables import read_table

_SIZES = {
    "vit_b": {},
    "vit_h": {
        "hidden_size": 1280, "num_hidden_layers": 32, "num_attention_heads": 16, "global_attn_indexes": [7, 15, 23, 31]
    },
}  # fmt: skip
GPU = "nvidia-a100-sxm4-40gb"
_DTYPES = {"fp32": "float32", "bf16": "bfloat16"}


def traced(size: str, dtype: str) -> rk.Graph:
    """The encoder's forward, its batch open."""
    from rooflinekit.tracing.targets import declare_torchvision_operators

    declare_torchvision_operators()
    from transformers import SamVisionConfig
    from transformers.models.sam.modeling_sam import SamVisionEncoder

    config = SamVisionConfig(**_SIZES[size])
    config._attn_implementation = "eager"
    with torch.device("meta"):
        encoder = SamVisionEncoder(config)
    return rk.trace(encoder, rk.Input("batch", 3, 1024, 1024), dtype=dtype, name=size)


def judged(data: Path) -> pd.DataFrame:
    """One line a model, format and batch."""
    softmax = torch.nn.functional.softmax
    with mock.patch("torch.nn.functional.softmax", lambda x, dim=None, **_: softmax(x, dim=dim)):
        return _judged(data)  # also where a size is traced anew


def _judged(data: Path) -> pd.DataFrame:
    table = read_table(data / "segment_anything_fast" / "results.csv")
    table = table[table.technique.isin(list(_DTYPES)) & (table.batch_size > 0)]
    rows = table.groupby(["sam_model_type", "technique", "batch_size"])["memory(MiB)"].median().reset_index()
    found = []
    graphs: dict[tuple[str, str], rk.Graph] = {}
    for model, technique, batch, measured in rows.itertuples(index=False):
        key = (model, technique)
        graphs.setdefault(key, traced(model, _DTYPES[technique]))
        use = rk.predict(graphs[key].at(batch=int(batch)), gpu=GPU).memory
        allocated, reserved = (size / 2**20 for size in (use.peak_bytes, use.reserved_bytes))
        found.append(
            {
                "model": model, "format": technique, "batch": int(batch), "measured MiB": measured,
                "allocated MiB": allocated, "reserved MiB": reserved, "off": allocated / measured - 1, "fits": use.fits,
            }
        )  # fmt: skip
    return pd.DataFrame(found)


def main() -> None:
    """Prints the table."""
    print(judged(asked(__doc__).data).round(3).to_string(index=False))


if __name__ == "__main__":
    main()
