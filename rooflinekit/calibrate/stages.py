"""What is fitted on what: stages, each on the ops that a few constants govern, after the stages that it builds on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Constants that are fitted together, on the ops that tell them."""

    name: str
    ops: frozenset[str]
    dtypes: frozenset[str]
    constants: tuple[str, ...]
    own: tuple[str, ...] = ()  # constants of which the value for all is known from an earlier stage


_HALF = frozenset({"fp16", "bf16"})
_SINGLE = frozenset({"fp32"})
_ELEMENTWISE = frozenset(
    {"add", "mul", "div", "pow", "addu", "mulu", "divu", "powu", "relu", "gelu", "tanh", "llm_add", "quantize"}
)

STAGES = (
    Stage(
        name="products on the matrix engine",
        ops=frozenset({"mm", "linear", "bmm"}),
        dtypes=_HALF,
        constants=(
            "matrix_share", "matrix_tile_loss", "matrix_prologue", "matrix_latency_cycles", "matrix_energy",
            "product_memory_share", "product_ramp_cycles", "overlap",
        ),
    ),
    Stage(
        name="products of 8 bits",
        ops=frozenset({"mm_quantized"}),
        dtypes=frozenset({"fp8"}),
        constants=("eight_bit_energy",),
    ),
    Stage(
        name="streams",
        ops=_ELEMENTWISE,
        dtypes=_HALF | _SINGLE,
        constants=("memory_share", "early_memory", "kernel_ramp_cycles", "special_rate", "vector_share"),
    ),
    Stage(
        name="rows",
        ops=frozenset({"softmax", "layernorm"}),
        dtypes=_HALF | _SINGLE,
        constants=("column_cycles", "row_cycles"),
    ),
    Stage(
        name="single accesses",
        ops=frozenset({"llm_norm", "llm_act", "llm_gelu", "llm_rope"}),
        dtypes=_HALF,
        constants=("access_cycles",),
    ),
    Stage(
        name="products on the vector lanes",
        ops=frozenset({"mm", "linear", "bmm"}),
        dtypes=_SINGLE,
        constants=(
            "lanes_share", "lanes_tile_loss", "lanes_prologue", "lanes_latency_cycles", "lanes_energy",
        ),
        own=("product_memory_share",),
    ),
    Stage(
        name="convolutions on the vector lanes",
        ops=frozenset({"conv_fwd", "conv_bwd_data", "conv_bwd_weight"}),
        dtypes=_SINGLE,
        constants=("lanes_convolution", "lanes_winograd"),
    ),
    Stage(
        name="convolutions on the matrix engine",
        ops=frozenset({"conv_fwd", "conv_bwd_data", "conv_bwd_weight"}),
        dtypes=_HALF,
        constants=("matrix_convolution", "matrix_backward"),
    ),
    Stage(
        name="attention",
        ops=frozenset({"attention", "attention_call"}),
        dtypes=_HALF,
        constants=("attention_share", "attention_block_cycles"),
    ),
)  # fmt: skip
