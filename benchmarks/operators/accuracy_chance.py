"""How many measurements of a set 90 % intervals would hold if their spreads were right: chance leaves a band.

All kernels of a family on a GPU are off together by one draw, so a set of one GPU holds 90 % on average over GPUs, and
on most of them more, on some much less. Rows few in number add to it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from scipy.stats import norm

if TYPE_CHECKING:
    from benchmarks.operators.accuracy import Judged

_DRAWS = 400
_ROWS = 200  # of a part that are looked at; their widths are alike
_FAIR = (85.0, 95.0)  # per cent held that the project asks of each set
_NINETY = 1.645


def by_chance(judged: Sequence[Judged]) -> pd.DataFrame:
    """Of each mode and set the 5th and the 95th percentile of the mean over GPUs of what is held, in per cent."""
    random = np.random.default_rng(0)
    sets: dict[tuple[str, str], dict[str, list[Judged]]] = defaultdict(lambda: defaultdict(list))
    for part in judged:
        sets[part.mode, part.table][part.gpu].append(part)
    rows = []
    for (mode, name), gpus in sorted(sets.items()):
        held = np.mean([_held(parts, random) for parts in gpus.values()], axis=0)
        low, high = np.quantile(held, (0.05, 0.95))
        rows.append({"mode": mode, "set": name, "least %": 100 * low, "most %": 100 * high})
    return pd.DataFrame(rows)


def _held(parts: Sequence[Judged], random: np.random.Generator) -> np.ndarray:
    """[draws] the share of one GPU's measurements that is held; those of one family are off together."""
    together = {part.residuals: random.standard_normal(_DRAWS)[:, None] for part in parts}
    inside, count = np.zeros(_DRAWS), 0
    for part in parts:
        n = len(part.measured)
        width, alone = (values[:: max(1, n // _ROWS)] for values in (part.width, part.alone))
        off = together[part.residuals] * np.sqrt(np.maximum((width / _NINETY) ** 2 - alone**2, 0.0))
        share = (norm.cdf((width - off) / alone) - norm.cdf((-width - off) / alone)).mean(axis=1)
        inside += random.binomial(n, share)
        count += n
    return inside / count


def told(table: pd.DataFrame) -> str:
    """How many sets hold what the project asks, and how many of the others differ from it by more than chance."""
    held = table["inside %"]
    fair, chance = held.between(*_FAIR), held.between(table["least %"], table["most %"])
    less, more = (~fair & ~chance & side for side in (held < _FAIR[0], held > _FAIR[1]))
    return (
        f"{fair.sum()} of {len(table)} sets hold 85 to 95 %. Of the others {(~fair & chance).sum()} lie where chance "
        "leaves 90 % of sets if the spreads are right (*by chance*: all kernels of a family on a GPU are off together, "
        f"so sets of one GPU vary, and those of few rows too); {less.sum()} hold less than that, {more.sum()} more."
    )
