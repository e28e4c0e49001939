"""Serving's targets beside what was found. Called by benchmarks/serving/page.py: the table at the top of the page."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pandas as pd

#: The least share of rows that intervals of 90 % should hold.
LEAST_HELD = 82.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A median error that is aimed at, in %: of which rows of a source, and of which measured thing."""

    title: str
    source: str  # as the page's rows are called
    what: str  # of measured: "tpot" and "ttft" of closed loops, else as the rows' column `what` says
    most: float | None  # %; None where only the interval has a target
    part: str | None = None  # of the rows, by their column `part`


TARGETS = (
    Target(title="Closed loops on H100, per token", source="h100", what="tpot", most=6),
    Target(title="Closed loops on H100, first token", source="h100", what="ttft", most=15),
    Target(title="The same, models with experts, per token", source="h100-experts", what="tpot", most=12),
    Target(title="The same, models with experts, first token", source="h100-experts", what="ttft", most=18),
    Target(title="Closed loops on B200, models with experts, per token", source="b200-experts", what="tpot", most=12),
    Target(title="Closed loops on B200, models with experts, first token", source="b200-experts", what="ttft", most=18),
    Target(title="Closed loops of SGLang on H200, per token", source="h200", what="tpot", most=9),
    Target(title="Closed loops of SGLang on H200, first token", source="h200", what="ttft", most=15),
    Target(title="Chats on H100, between tokens", source="ml_energy", what="between tokens, median", most=None),
    Target(title="Closed loops on B200, per token", source="b200", what="tpot", most=10),
    Target(title="Closed loops on B200, first token", source="b200", what="ttft", most=15),
    Target(title="At a rate (blis, judged), whole answer", source="blis", what="e2e mean", most=6, part="judged"),
    Target(title="At a rate (blis, judged), between tokens", source="blis", what="itl mean", most=6, part="judged"),
    Target(title="At a rate (blis, judged), first token", source="blis", what="ttft mean", most=12, part="judged"),
    Target(title="Batches of TensorRT-LLM, tokens a second", source="tensorrt_llm", what="tokens/s", most=6),
    Target(title="Batches of TensorRT-LLM, first token", source="tensorrt_llm", what="first token", most=9),
    Target(title="Batches of engines of 2024, tokens a second", source="llm_inference_bench", what="tokens/s", most=6),
    Target(title="Batches of vLLM of 2023, per token", source="splitwise", what="per token", most=6),
    Target(title="Batches of vLLM of 2023, first token", source="splitwise", what="first token", most=9),
)


def targets(sources: Mapping[str, Callable[[], pd.DataFrame]]) -> pd.DataFrame:
    """The figure of each target: medians of errors, and shares that intervals hold; a miss is bold. sources: rows."""
    return pd.DataFrame([_line(target, sources[target.source]()) for target in TARGETS])


def _line(target: Target, rows: pd.DataFrame) -> dict[str, object]:
    predicted, measured, hit = _judged(target, rows)
    line: dict[str, object] = {"what": target.title, "rows": len(measured), "median error, %": "", "at most": ""}
    if target.most is not None:
        error = round(float(100 * (predicted / measured - 1).abs().median()), 1)
        line |= {"median error, %": _marked(error, error > target.most), "at most": f"{target.most:g}"}
    held = round(100 * float(hit.mean()), 1)
    return line | {f"in 90 %, % (at least {LEAST_HELD:g})": _marked(held, held < LEAST_HELD)}


def _marked(figure: float, missed: bool) -> str:
    return f"**{figure}**" if missed else str(figure)


def _judged(target: Target, rows: pd.DataFrame) -> tuple[pd.Series, pd.Series, pd.Series]:
    """Predicted and measured, and whether the interval holds what was measured where rows say so."""
    if target.what in rows:  # of closed loops
        measured = rows[target.what]
        hit = (measured >= rows[f"{target.what}_low"]) & (measured <= rows[f"{target.what}_high"])
        return rows[f"{target.what}_predicted"], measured, hit
    chosen = rows[rows["what"] == target.what]
    if target.part is not None:
        chosen = chosen[chosen["part"] == target.part]
    told = chosen["hit"].dropna() if "hit" in chosen else pd.Series(dtype=bool)
    return chosen["predicted"], chosen["measured"], told.astype(str).eq("True")
