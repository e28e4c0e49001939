"""How far whole answers are off together that are assembled from parts: programs, releases and harnesses of others.

Kernels, links and the host have spreads of their own, told by what was measured of them alone. What a program does
beside them is known from its source at best, of one release. One number stands for all of it, by what is asked: the
root of the mean square of ln(measured / predicted), the median of each source and GPU once, of sources of which no
constant was fitted on any step (`python benchmarks/ledger.py DATA --sources` prints them, from docs/ledger.csv).
"""

from __future__ import annotations

import math

#: Standard deviations of the logarithm. decoder training: of a decoder's training step by a recipe (Megatron-LM, NeMo,
#: LLM Foundry on H100, A100 and B200). per token, first token: of engines that serve language models (vLLM of 2023 to
#: 2025, TensorRT-LLM, SGLang, DeepSpeed-MII). several GPUs: of a traced step on several, beside that on one (gavel).
SOURCES = {"decoder training": 0.14, "per token": 0.11, "first token": 0.21, "several GPUs": 0.025}


def widened(bounds: tuple[float, float], middle: float, what: str, deviations: float) -> tuple[float, float]:
    """Bounds in seconds about a prediction, with the source's part added in squares of logarithms; 0 stays 0.

    what: of SOURCES. deviations: how many standard deviations the bounds are wide.

    >>> [round(s, 4) for s in widened((1.0, 1.0), 1.0, "decoder training", 1.645)]  # exp(∓1.645·0.14)
    [0.7943, 1.259]
    """
    if middle <= 0:
        return bounds
    source = deviations * SOURCES[what]
    low, high = (math.log(middle / bounds[0]) if bounds[0] > 0 else math.inf), math.log(bounds[1] / middle)
    return middle * math.exp(-math.hypot(low, source)), middle * math.exp(math.hypot(high, source))
