"""Number formats of weights and of the cache of keys and values, and the bytes that they take."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from types import MappingProxyType
from typing import Any, Literal, TypeVar

from rooflinekit.errors import check_word
from rooflinekit.ir.arguments import checked, expect_count
from rooflinekit.ir.op import DType

#: How the next token is chosen of the logits: the largest, one drawn of the most likely ones, or as the model says.
Sampling = Literal["greedy", "sorted", "published"]
#: Of scales: one a row.
ROW = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFormat:
    """How the matrices of layers are stored and multiplied; embedding and output matrix stay in 16 bits.

    bits: of a number. activations: format in which they are multiplied. dynamic: the scale of the activations is found
    anew in each step, where it is otherwise fixed. weight_only: weights become numbers of 16 bits in the product.
    group: numbers of a row that share a scale; ROW for all of them, None for the whole matrix. square: so many rows
    share it too. scale: how scales are stored. experts_only: where there are experts, all else stays in 16 bits.
    """

    bits: int
    stored: DType
    activations: DType
    dynamic: bool = False
    weight_only: bool = False
    group: int | None = None
    square: bool = False
    scale: DType = DType.FLOAT32
    experts_only: bool = False

    @property
    def few_bits(self) -> bool:
        """Whether both factors of the product have 8 bits or fewer."""
        return self.activations.itemsize == 1

    @property
    def outside(self) -> DType:
        """The format of everything but the products."""
        return DType.BFLOAT16 if self.few_bits else self.activations

    @property
    def packed(self) -> int:
        """Numbers in an element of what is stored."""
        return 8 * self.stored.itemsize // self.bits

    def on_block_cores(self) -> WeightFormat:
        """Where tensor cores take blocks of 4 bits with their scales: blocks of 32 are multiplied as they are stored,
        with activations in blocks of fp8 (gpt-oss in vLLM's FlashInfer and TensorRT-LLM, by default on Blackwell).
        """
        if not self.weight_only or self.scale is not DType.FLOAT8_E8M0FNU:
            return self
        return replace(self, activations=DType.FLOAT8_E4M3FN, weight_only=False, dynamic=True)

    def scale_shape(self, n: int, k: int) -> tuple[int, ...]:
        """Scales of an [n, k] matrix; () for none."""
        if self.bits == 16:
            return ()
        if self.group is None:
            return (1,)
        if self.group == ROW:
            return (n,)
        return (math.ceil(n / self.group) if self.square else n, math.ceil(k / self.group))


_BF16, _FP16, _FP8, _FP4 = DType.BFLOAT16, DType.FLOAT16, DType.FLOAT8_E4M3FN, DType.FLOAT4_E2M1FN_X2

WEIGHT_FORMATS: Mapping[str, WeightFormat] = MappingProxyType(
    {
        "bf16": WeightFormat(bits=16, stored=_BF16, activations=_BF16),
        "fp16": WeightFormat(bits=16, stored=_FP16, activations=_FP16),
        "fp8": WeightFormat(bits=8, stored=_FP8, activations=_FP8),
        "fp8-dynamic": WeightFormat(bits=8, stored=_FP8, activations=_FP8, dynamic=True),
        # DeepSeek V3's: scales of 128 × 128 weights, and of 128 numbers of an activation
        "fp8-block": WeightFormat(bits=8, stored=_FP8, activations=_FP8, dynamic=True, group=128, square=True),
        "int8-dynamic": WeightFormat(bits=8, stored=DType.INT8, activations=DType.INT8, dynamic=True, group=ROW),
        "int8": WeightFormat(
            bits=8, stored=DType.INT8, activations=_BF16, weight_only=True, group=ROW, scale=_BF16
        ),
        # GPTQ's and AWQ's as published; also the group of aiconfigurator's int4_wo
        "int4": WeightFormat(bits=4, stored=DType.UINT8, activations=_BF16, weight_only=True, group=128, scale=_BF16),
        "nvfp4": WeightFormat(bits=4, stored=_FP4, activations=_FP4, dynamic=True, group=16, scale=_FP8),
        # OCP Microscaling Formats 1.0: 32 numbers share an exponent of 8 bits; weights alone, as gpt-oss is served
        "mxfp4": WeightFormat(
            bits=4, stored=DType.UINT8, activations=_BF16, weight_only=True, group=32, scale=DType.FLOAT8_E8M0FNU,
            experts_only=True,
        ),
    }
)  # fmt: skip
KV_FORMATS: Mapping[str, DType] = MappingProxyType({"bf16": _BF16, "fp16": _FP16, "fp8": _FP8})

_Format = TypeVar("_Format")


def check_format(what: str, name: str, known: Mapping[str, _Format]) -> _Format:
    """The format of this name; raises InputError for another word."""
    check_word(what, name, known)
    return known[name]


#: Of adapters, and of GPUs, beyond any cluster.
_MOST = 2**16


@checked
@dataclass(frozen=True, slots=True, kw_only=True)
class Adapters:
    """Adapters of one rank on all matrices of the layers' attention and networks, but experts and routers.

    number: of adapters in the GPU's memory (`--max-loras`), of which each sequence uses one, chosen evenly. rank: of
    each. Behind each product of k numbers to n, the tokens of each adapter that some sequence uses pass its
    [k, rank] and [rank, n], in 16 bits: two grouped products (Punica, arXiv 2310.18547; S-LoRA, arXiv 2311.03285).
    Under tensor parallelism the adapter is cut as the matrix is; the sum of its `rank` numbers over GPUs is left out.

    Raises InputError for a number that is not above 0.
    """

    number: int
    rank: int = 16

    def __post_init__(self) -> None:
        for name in ("number", "rank"):
            expect_count(f"adapters {name}", getattr(self, name), most=_MOST)

    def to_dict(self) -> dict[str, int]:
        """Ready for JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How the steps of a decoder are stored and cut, as `Decoder.prefill` and `Decoder.decode` describe it."""

    weights: str = "bf16"
    kv: str = "bf16"
    tp: int = 1
    ep: int = 1
    dp: int = 1
    drafted: int = 0
    adapters: Adapters | None = None
    release: str = ""  # of an engine, such as "vllm:0.12", whose attention runs; "" for the newest kernels
    sampling: str = "greedy"  # or "sorted", as of `Engine`

    @property
    def gpus(self) -> int:
        """GPUs of one copy of the model."""
        return self.tp * self.dp

    def options(self) -> dict[str, Any]:
        """The values of these options alone, by name."""
        return {one.name: getattr(self, one.name) for one in fields(Options)}


def check_parts(tp: int, ep: int, dp: int = 1) -> None:
    """Raises InputError for a number of GPUs or of parts below 1, or beyond any cluster."""
    for name, value in (("tp", tp), ("ep", ep), ("dp", dp)):
        expect_count(name, value, most=_MOST, words=f"a positive integer of at most {_MOST:,}")
