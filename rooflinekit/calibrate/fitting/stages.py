"""What is fitted on what: stages, each on the ops that a few constants govern, after the stages that it builds on."""

from __future__ import annotations

from dataclasses import dataclass

from rooflinekit.model.algorithms import CUDNN, MIOPEN


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Constants that are fitted together, on the ops that tell them."""

    name: str
    ops: frozenset[str]
    dtypes: frozenset[str]
    constants: tuple[str, ...]
    own: tuple[str, ...] = ()  # constants of which the value for all is known from an earlier stage
    library: str = ""  # of convolutions, whose GPUs alone are looked at


_HALF = frozenset({"fp16", "bf16"})
_SINGLE = frozenset({"fp32"})
_CONVOLUTIONS = frozenset({"conv_fwd", "conv_bwd_data", "conv_bwd_weight"})
_ELEMENTWISE = frozenset(
    {"add", "mul", "div", "pow", "addu", "mulu", "divu", "powu", "relu", "gelu", "tanh", "llm_add", "quantize"}
)

STAGES = (
    Stage(
        name="streams",
        ops=_ELEMENTWISE | {"llm_norm", "llm_act", "llm_gelu", "llm_rope"},
        dtypes=_HALF | _SINGLE,
        constants=(
            "memory_share", "early_memory", "kernel_ramp_cycles", "special_rate", "vector_share", "l2_bytes_per_clock",
            "cache_share", "access_cycles",
        ),
    ),
    Stage(
        name="products on the tensor core",
        ops=frozenset({"mm", "linear", "bmm"}),
        dtypes=_HALF,
        constants=(
            "matrix_share", "matrix_tile_loss", "matrix_prologue", "latency_cycles", "matrix_energy",
            "energy_size_exponent", "energy_node_exponent", "product_memory_share", "product_ramp_cycles", "overlap",
            "power_window",
        ),
    ),
    Stage(
        name="products of 8 bits",
        ops=frozenset({"mm_quantized", "mm", "bmm"}),
        dtypes=frozenset({"fp8", "int8"}),
        constants=("eight_bit_energy", "eight_bit_share"),
    ),
    Stage(
        name="products of packed weights",  # at the rates of others: only what TensorRT's profiler adds is told
        ops=frozenset({"mm_int8", "mm_int4"}),
        dtypes=_HALF,
        constants=(),
    ),
    Stage(
        name="products of 4 bits",
        ops=frozenset({"mm_nvfp4"}),
        dtypes=_HALF,
        constants=("four_bit_share",),
    ),
    Stage(
        name="rows",
        ops=frozenset({"softmax", "layernorm"}),
        dtypes=_HALF | _SINGLE,
        constants=("column_cycles", "row_cycles"),
    ),
    Stage(
        name="products on the CUDA cores",
        ops=frozenset({"mm", "linear", "bmm"}),
        dtypes=_SINGLE,
        constants=(
            "simt_share", "simt_tile_loss", "simt_energy",
            "single_tensor_core_share",
        ),
        own=("product_memory_share",),
    ),
    Stage(
        name="convolutions on the CUDA cores",
        ops=_CONVOLUTIONS,
        dtypes=_SINGLE,
        constants=(
            "simt_convolution", "simt_backward", "simt_weight", "simt_winograd", "simt_winograd_weight",
            "simt_fourier", "simt_volume", "winograd_prologue",
        ),
        library=CUDNN,
    ),
    Stage(
        name="convolutions on the tensor core",
        ops=_CONVOLUTIONS,
        dtypes=_HALF | {"tf32"},
        constants=(
            "matrix_convolution", "matrix_backward", "matrix_weight", "matrix_volume", "simt_few", "simt_few_weight",
            "single_window_cycles",
        ),
        library=CUDNN,
    ),
    Stage(
        name="convolutions by MIOpen",
        ops=_CONVOLUTIONS,
        dtypes=_HALF | _SINGLE,
        constants=(
            "miopen_simt", "miopen_simt_pixel", "miopen_simt_weight", "miopen_simt_pixel_weight",
            "miopen_latency_cycles", "miopen_matrix", "miopen_matrix_weight", "miopen_winograd",
            "miopen_winograd_weight", "miopen_half", "emulated_half", "untuned_bf16", "naive_cycles",
            "repeat_gap", "library_call",
        ),
        library=MIOPEN,
    ),
    Stage(
        name="attention",
        ops=frozenset({"attention", "attention_call"}),
        dtypes=_HALF,
        constants=("attention_share", "attention_block_cycles"),
        own=("cache_share", "l2_bytes_per_clock"),
    ),
)  # fmt: skip
