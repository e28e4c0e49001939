"""The page of all served sources. Called by benchmarks/serving/accuracy.py --page FILE [--keep FOLDER]."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import pandas as pd

from benchmarks.serving.closed import MODELS, MODELS_WITH_EXPERTS, judged, ml_energy
from benchmarks.serving.open import blis, llmservingsim
from benchmarks.serving.products import products
from benchmarks.serving.static import judged as static_rows
from benchmarks.serving.tables import closed_tables, other_tables
from benchmarks.serving.targets import targets
from benchmarks.sources.page_tables import markdown_lines
from benchmarks.sources.tables import read_table
from rooflinekit.files import write_text

HEAD = """# Serving: how good it is

Made by `python -m benchmarks.serving.accuracy DATA --page docs/serving_accuracy.md`, DATA with the tables that
benchmarks/serving/closed.py, benchmarks/serving/open.py and benchmarks/serving/static.py name, which also say what was
assumed. Errors are medians and 90th percentiles of |predicted / measured - 1|; bias is the median of predicted /
measured; "in 90 %" is the share of rows within the stated interval. A target that is missed is bold. What it means is
in [Serving language models](serving.md#how-good-it-is).

"""

#: Of closed loops: title, GPU and models.
CLOSED = {
    "h100": ("H100", "h100", MODELS),
    "h100-experts": ("H100, models with experts", "h100", MODELS_WITH_EXPERTS),
    "h200": ("H200", "h200", MODELS),
    "b200": ("B200", "b200", MODELS),
    "b200-experts": ("B200, models with experts", "b200", MODELS_WITH_EXPERTS),
}
OTHERS: dict[str, tuple[str, Callable[[Path], pd.DataFrame]]] = {
    "ml_energy": ("vLLM on H100, chats (ml_energy)", ml_energy),
    "blis": ("Requests at a rate (blis)", lambda data: blis(data, 300)),
    "llmservingsim": ("A log of requests (llmservingsim)", llmservingsim),
    "tensorrt_llm": ("Batches that start together: TensorRT-LLM", lambda data: static_rows(data, "tensorrt_llm")),
    "llm_inference_bench": (
        "Batches that start together: engines of 2024", lambda data: static_rows(data, "llm_inference_bench")
    ),
    "splitwise": ("Batches that start together: vLLM of 2023", lambda data: static_rows(data, "splitwise")),
}  # fmt: skip


def page(data: Path, keep: Path | None) -> str:
    """All tables, in Markdown. keep: a folder for the rows of each source, which are read if they are there."""
    made: dict[str, Callable[[], pd.DataFrame]] = {
        name: partial(judged, data, gpu, "predicted", models) for name, (_, gpu, models) in CLOSED.items()
    } | {name: partial(make, data) for name, (_, make) in OTHERS.items()}
    sources = {name: cache(partial(_kept, keep, name, make)) for name, make in made.items()}
    text = [HEAD, "## Targets\n", markdown(targets(sources))]
    text.append("## Closed loops (aiconfigurator: its own runs and InferenceX)\n")
    for name, (title, *_) in CLOSED.items():
        by_model, parts = closed_tables(sources[name]())
        text += [f"### {title}\n", markdown(parts), markdown(by_model)]
    for name, (title, _) in OTHERS.items():
        text.append(f"## {title}\n")
        for what, table in other_tables(name, sources[name]()):
            text += [f"{what[0].upper()}{what[1:]}:\n", markdown(table)]
    text += [
        "## Products in fewer bits (aiconfigurator; experts: InferSim)\n",
        "Shapes that no fit has seen, as benchmarks/serving/products.py says. Blocks of fp8 have the constants of "
        "other 8-bit products. `timer` is what TensorRT's profiler adds.\n",
        markdown(_kept(keep, "products", partial(products, data))),
    ]
    return "\n".join(text)


def _kept(keep: Path | None, name: str, make: Callable[[], pd.DataFrame]) -> pd.DataFrame:
    file = None if keep is None else keep / f"{name}.csv"
    if file is not None and file.exists():
        return read_table(file, keep_default_na=False, na_values=[""])
    rows = make()
    if file is not None:
        write_text(rows.to_csv(index=False), file)
    return rows


def markdown(table: pd.DataFrame) -> str:
    """A table of a page."""
    rows = [["" if pd.isna(cell) else str(cell) for cell in row] for row in table.to_numpy().tolist()]
    return markdown_lines(list(map(str, table.columns)), rows) + "\n"
