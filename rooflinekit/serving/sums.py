"""Sums over GPUs as an engine's own kernels make them, in the place of NCCL's."""

from __future__ import annotations

from typing import Protocol

#: Seconds of a sum of one number over 2 to 8 GPUs, each reading all others' after one barrier: vLLM's kernel in a CUDA
#: graph on H100, 16 KiB, less the bytes' time: 4.35, 4.64 and 4.82 µs (aiconfigurator, collectives_h100_sxm,
#: vLLM_custom_graph); SGLang's and TensorRT-LLM's take 2.7 to 3.7. On B200 all three take 4.1 to 8.1.
ONE_SHOT_S = 4.6e-6
#: Those of a second barrier, where each GPU sums a part and gathers the others' parts: the same table, 8 GPUs, 1 MiB:
#: 14.8 µs, of which the bytes take 6.1 and a sum of one number 4.6.
TWO_SHOT_S = ONE_SHOT_S + 4.1e-6
_MIB = 2**20


class CollectiveTime(Protocol):
    """Seconds of an all-reduce of so many bytes over so many GPUs."""

    def __call__(self, size_bytes: float, gpus: int, /) -> float:
        """Seconds."""


def one_shot_s(size_bytes: float, gpus: int, collective_s: CollectiveTime) -> float:
    """Seconds of a sum by the fastest of three: each GPU reads all of all others (one shot), or sums a part and gathers
    the rest (two shots), or the collective that `collective_s` times.

    Bytes pass at the rate of that collective's large messages: 2·(n − 1)/n of each byte.
    """
    share = 2 * (gpus - 1) / gpus
    small_s, large_s = (collective_s(size, gpus) for size in (16 * _MIB, 64 * _MIB))
    rate = share * 48 * _MIB / (large_s - small_s)
    return min(
        ONE_SHOT_S + (gpus - 1) * size_bytes / rate,
        TWO_SHOT_S + share * size_bytes / rate,
        collective_s(size_bytes, gpus),
    )
