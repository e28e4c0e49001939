"""The constants of kernels, of collectives and of power: unit, meaning, the value before measurements."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from rooflinekit.calibrate.campaigns.operators import CONVOLUTIONS, ELEMENTWISE
from rooflinekit.kernels.algorithms import CUDNN, MIOPEN
from rooflinekit.published.stated import Constant

_FITTED = "starting point of the fit"


@dataclass(frozen=True, slots=True)
class Description:
    """What a constant is. `low` and `high` are the range in which it has its meaning."""

    unit: str
    meaning: str
    start: float  # before any measurement
    low: float
    high: float
    spread: float  # how far `start` may be off, in log units
    between: float  # how far GPUs differ from each other, in log units; 0 where the constant is the same for all
    source: str = _FITTED  # of `start`

    def differs(self, kind: str) -> float:
        """How far a device of this kind may be from the constants of GPUs, in log units; 0 where it is the same.

        GPUs by as much as they were found to. A CPU is another machine: nothing is the same, and far more may differ.
        """
        return self.between if kind == "gpu" else max(_CPU * self.between, self.spread)

    def constant(self, value: float, stderr: float, source: str) -> Constant:
        """A value of it."""
        return Constant(value=value, stderr=stderr, unit=self.unit, meaning=self.meaning, source=source)


def stated(descriptions: Mapping[str, Description]) -> Mapping[str, Constant]:
    """Every constant as it is before any measurement."""
    return MappingProxyType({name: d.constant(d.start, d.spread, d.source) for name, d in descriptions.items()})


_CPU = 5.0  # how much further than GPUs from each other a CPU may be from them
_STATED = "stated default"
_MEASURABLE = f"{_STATED}; `rooflinekit calibrate --device cpu` measures it"

_d = Description

CONSTANTS: dict[str, Description] = {
    # --- products, on the tensor core and the CUDA cores
    "issue_share": _d("1", "issue rate of products in a kernel's inner loop, of the unit's dense peak",
                       0.90, 0.4, 1.0, 0.2, 0.10),
    "matrix_tile_loss": _d("element",
                           "a tile a×b of the tensor core takes 1 + loss·(1/a + 1/b) of a large one's time; of CUDA "
                           "cores with half the loss",
                           10, 0.1, 80, 1.0, 0.5),
    "matrix_prologue": _d("element",
                          "steps in k that a tile takes beyond the product's, to fill the pipeline and to be written",
                          120, 1, 800, 1.0, 0.3),
    "latency_cycles": _d("cycle", "least time of one step in k, however small the tile, on either unit",
                                3, 0.05, 40, 1.0, 0.4),
    "matrix_energy": _d("J/flop", "what a board at its limit draws for a 16-bit FLOP on the tensor core, in 16 nm",
                        3.05e-12, 0.4e-12, 10e-12, 0.3, 0.0),
    "single_tensor_core_share": _d("1", "issue rate of the tensor core in plain fp32 products, of that in 16 bits, "
                              "each of its own peak", 0.85, 0.3, 1.2, 0.2, 0.0),
    "eight_bit_energy": _d("1", "energy of an 8-bit FLOP on the tensor core, of a 16-bit one's",
                           0.6, 0.3, 1.0, 0.2, 0.25),
    "eight_bit_share": _d("1", "issue rate of the tensor core in 8 bits, of that in 16, each of its own peak",
                          0.9, 0.2, 1.3, 0.2, 0.15),
    "four_bit_share": _d("1", "issue rate of the tensor core in 4 bits, of that in 16, each of its own peak",
                         0.8, 0.2, 1.3, 0.2, 0.10),
    # --- products on the CUDA cores
    "simt_convolution": _d("1", "rate of an implicit-product convolution on the CUDA cores, of a product's",
                            0.80, 0.2, 1.3, 0.3, 0.15),
    "simt_weight": _d("1", "rate of the gradient of a convolution's weight on the CUDA cores, of a product's",
                       0.70, 0.2, 1.3, 0.3, 0.15),
    "untuned_convolution": _d("1", "rate of convolutions of volumes, of windows above 7, and of fewer than 4 "
                              "channels, for which nothing is unrolled, on either unit, of a product's",
                              0.4, 0.03, 1.3, 0.4, 0.4,
                              "3-D, 5×9 and 11×11 convolutions take 1.3 to 8 times what others would (T4, A6000, L40S, "
                              "H100)"),
    # MIOpen's rates: times of one solver differ between GPUs as their peaks do, within a fifth; which solvers a GPU's
    # MIOpen has, and has tuned, differs more among those of a weight. Wider ones would fit the way of timing instead.
    "miopen_simt": _d("1", "rate of MIOpen's implicit products on the CUDA cores, of a product's",
                       0.55, 0.03, 1.3, 0.4, 0.2),
    "miopen_simt_weight": _d("1", "rate of MIOpen's gradient of a convolution's weight on the CUDA cores, and of "
                              "Winograd's in passes, of a product's", 0.35, 0.03, 1.3, 0.4, 0.3),
    "miopen_half": _d("1", "rate of fp16 by MIOpen's kernels on CUDA cores that multiply pairs, of its peak, as fp32's "
                      "of its own", 0.7, 0.2, 1.2, 0.3, 0.1),
    "miopen_latency_cycles": _d("cycle", "wait of a block of MIOpen's convolutions for the operands of a step in k, "
                                "on either unit", 20, 0.5, 300, 1.0, 0.15),
    "emulated_half": _d("1", "rate of a 16-bit format that CUDA cores without it unpack and round, of fp32's", 0.6,
                        0.05, 1.0, 0.4, 0.2),
    "untuned_bf16": _d("1", "rate of an image's gradient in bf16 of sizes that AMD's library of products has not "
                       "tuned, of emulated_half", 0.05, 0.005, 1.0, 0.6, 0.3),
    "simt_energy": _d("J/flop", "what a board at its limit draws for an fp32 FLOP on the CUDA cores, in 16 nm",
                       18.3e-12, 7e-12, 50e-12, 0.2, 0.1),
    "energy_node_exponent": _d("1", "energy falls with this power of the process node", 0.65, 0.2, 1.5, 0.2, 0.0),
    "simt_node_exponent": _d("1", "energy on the CUDA cores falls with this power of the process node",
                              0.75, 0.2, 1.5, 0.1, 0.0,
                              "fp32 products of 4096 in KernelBench, held by power: T4 4.1 TFLOP/s at 70 W, A6000 23.6 "
                              "at 300 W, L40S 47.7 at 350 W: 17, 12.7 and 7.3 pJ, of boards of 16, 12 and 5 nm"),
    "boost_headroom": _d("1", "clock of boards with halved units (GeForce), of the stated boost", 1.08, 0.8, 1.2, 0.03,
                         0.05, "reviews see RTX 2080 Ti, 3070, 3090, 4080 and 4090 4 to 12 % above it under load"),
    "energy_size_exponent": _d("1", "energy of matrix products falls with this power of an SM's multiply-adds a clock",
                               0.43, 0.01, 1.0, 0.1, 0.0, "operands a multiply-add: about the square root of the "
                               "instruction's size; bf16 products on V100, L40S, A100, H100, B200"),
    "power_window": _d("s", "a board runs above its power limit for so long before the clock is lowered",
                       0.05, 0.003, 1.0, 0.7, 0.0, "bf16 products of 2 to 20 ms on L40S, 54 in a row"),
    "window_cycles": _d("cycle", "time of a lane for each output of a depthwise convolution, beside its taps",
                        120, 5, 1000, 0.4, 0.0, "depthwise 3×3 takes 2-3 times its traffic time (RTX 3090, 4090)"),
    "tap_cycles": _d("cycle", "time of a lane for each multiply-add of a depthwise convolution",
                     7.5, 0.5, 60, 0.4, 0.0, "depthwise 7×7 takes 5-15 times its FLOP at the fp32 peak"),
    "loop_tap_cycles": _d("cycle", "time of a lane for each multiply-add of a depthwise convolution where the window's "
                          "size is not known to the compiler",
                          29, 5, 150, 0.4, 0.0, "conv_depthwise2d_forward_kernel: 2 loads of 4 cycles each, 2 "
                          "conversions, 8 integer operations of 2 each, a multiply-add; training of eca_nfnet_l0 and "
                          "_l2, whose groups take each multiply-add by itself, says 24 and 22 (RTX 3090)"),
    "channel_tap_cycles": _d("cycle", "time of a lane for each multiply-add of a depthwise convolution where a library "
                             "multiplies a channel at a time",
                             100, 10, 400, 0.4, 0.0, "ConvMixer's 9×9 windows with channels last take 2 to 3 times "
                             "those with channels first (RTX 3090, 4090)"),
    "naive_cycles": _d("cycle", "time of a lane for each multiply-add of the naive kernel, a library's last resort",
                       60, 2, 2000, 1.0, 0.2),
    # --- other arithmetic
    "ocml_cycles": _d("cycle", "time of a lane for a special function by AMD's library, beside the function; a power "
                      "takes ten", 17, 5, 50, 0.3, 0.0,
                      "silu in bf16 takes 1.6 times its traffic on MI300X (AMD-AGI/TraceLens, MIT), NeuSight's pow "
                      "with a scalar 1.7 times its division on MI100"),
    # --- memory
    "memory_share": _d("1", "DRAM bandwidth that streaming kernels sustain, of the datasheet's",
                       0.90, 0.5, 1.0, 0.2, 0.07),
    "early_memory": _d("1", "DRAM bandwidth that HBM before Volta sustains, of what later memory does",
                       0.85, 0.6, 1.1, 0.3, 0.0),
    "product_memory_share": _d("1", "DRAM bandwidth that product kernels sustain, of the datasheet's",
                               0.78, 0.3, 1.0, 0.1, 0.10),
    "l2_bytes_per_clock": _d("byte/clock/SM", "bandwidth of the last-level cache, reads and writes",
                             24, 8, 128, 0.5, 0.2, "A100 reads 5.4 TB/s at 108 SMs and 1.41 GHz: 35; H100 PCIe 6.9 "
                             "TB/s at 114 and 1.755: 34"),
    "cache_share": _d("1", "largest working set that stays in the last-level cache, of its capacity",
                      0.8, 0.1, 1.2, 0.3, 0.2),
    "overlap": _d("1", "exponent of the norm that joins compute and memory time", 2.8, 1.2, 10, 0.5, 0.0),
    "column_cycles": _d("cycle", "time of an SM for an element of a row, all passes together", 0.5, 0.005, 4, 1.0, 0.3),
    "thread_cycles": _d("cycle", "time of an SM for a thread of a row's block, beside elements: start, reductions, end",
                        3.5, 0.2, 40, 1.0, 0.2),
    "load_cycles": _d("cycle", "from one load of a row's block that is alone on its SM to the next, out of DRAM",
                      900, 400, 2000, 0.3, 0.0, "KernelBench's layer norm of 16 rows of 4 million numbers takes 3.5 "
                      "cycles a number on eight GPUs: two passes of 128 threads with 4 numbers each"),
    "access_cycles": _d("cycle", "time of an SM for a load of a single element", 0.4, 0.005, 3, 1.0, 0.15),
    # --- attention
    "attention_share": _d("1", "rate of fused attention, of a product's on the same unit", 0.65, 0.2, 1.3, 0.3, 0.15),
    "tensor_memory_attention": _d("1", "rate of fused attention where sums are in tensor memory (Blackwell's data "
                                  "centre GPUs), of a product's",
                                  0.92, 0.3, 1.3, 0.08, 0.0, "NVIDIA/cudnn-frontend (MIT): cuDNN's on B200, GB200"),
    "engine_attention": _d("1", "rate of TensorRT-LLM's own attention before Blackwell, of FlashAttention's", 0.8, 0.3,
                           1.3, 0.1, 0.0, "ai-dynamo/aiconfigurator (Apache-2.0): prompts on A100, H100 and L40S"),
    "warp_mma_flop": _d("flop/clock/SM", "16-bit products by instructions of single warps, at most", 2048, 1024, 4096,
                        0.05, 0.0, "what an SM of A100 does (NVIDIA, A100 whitepaper); no fit"),
    "efficient_attention": _d("1", "rate of memory-efficient attention and of FlashAttention 1, of FlashAttention 2's",
                              0.51, 0.2, 1.2, 0.2, 0.0, "figures of thu-ml/SageAttention and xlite-dev/ffpa-attn "
                              "(Apache-2.0) on A100, B200, RTX 3090, and Dao-AILab/flash-attention's (BSD-3-Clause) on "
                              "A100 and H100"),
    "efficient_wide_gradient": _d("1", "rate of memory-efficient attention's gradient for heads above 128, of "
                                  "FlashAttention 2's", 0.16, 0.02, 1.2, 0.4, 0.0,
                                  "xlite-dev/ffpa-attn (Apache-2.0): heads of 512 on B200"),
    "triton_attention": _d("1", "rate of attention written in Triton, of that written by hand", 0.63, 0.2, 1.2, 0.3,
                           0.0, "Dao-AILab/flash-attention's figures (BSD-3-Clause) on A100 and H100"),
    "aotriton_attention": _d("1", "the same on AMD's GPUs, by AOTriton", 0.35, 0.1, 1.2, 0.4, 0.0,
                             "AMD-AGI/TraceLens (MIT): ten shapes on MI300X; by either half of them 0.27 and 0.39"),
    "attention_gradient": _d("1", "rate of products in the gradient of fused attention, of those in the forward pass",
                             0.87, 0.3, 1.2, 0.08, 0.0, "NVIDIA/cudnn-frontend (MIT) and Dao-AILab/flash-attention "
                             "(BSD-3-Clause): FlashAttention 2 and cuDNN on A100, H100 and RTX PRO 6000"),
    "cudnn_attention": _d("1", "rate of cuDNN's attention, of FlashAttention's; in tensor memory its gradient's",
                          0.9, 0.3, 1.2, 0.1, 0.0, "NVIDIA/cudnn-frontend (MIT) on A100 and RTX PRO 6000, and "
                          "Dao-AILab/flash-attention's figures (BSD-3-Clause) on H100"),
    "attention_block_cycles": _d("cycle", "start and end of a block of fused attention", 2000, 10, 40000, 1.0, 0.3),
    # --- starts
    "kernel_ramp_cycles": _d("cycle", "from a kernel's first to its last instruction where there is hardly any work",
                             2400, 200, 12000, 0.5, 0.2),
    "product_ramp_cycles": _d("cycle", "from the first to the last instruction of a kernel of products where there is "
                              "hardly any work", 4000, 200, 20000, 0.5, 0.2),
    "kernel_gap": _d("s", "from one kernel's end to the next one's start in a stream", 1.0e-6, 1e-7, 5e-6, 0.3, 0.0,
                     "kernel to kernel in one stream 2.6 µs (A100), 1.9 µs (A40), 1.6 µs (L40), less the ramp"),
    "kernel_gap_graph": _d("s", "from one kernel's end to the next one's start in a CUDA graph",
                           0.4e-6, 1e-7, 5e-6, 0.3, 0.0,
                           "kernel to kernel in a CUDA graph 1.3 µs (A100), 1.1 µs (A40), 1.0 µs (L40), less the ramp"),
    "repeat_gap": _d("s", "between launches of one operator, each of which waits for the one before", 6e-6, 1e-7, 1e-4,
                     0.7, 0.2, "weight gradients of one pixel take 7 to 9 µs an image beside their work (MI100)"),
}  # fmt: skip


# Of collectives.


#: Of a kind of link, or of a generation of GPUs. `between`: how far those may be from each other, in log units.
LINK_CONSTANTS: dict[str, Description] = {
    "share": _d("1", "bandwidth that a long message gets, of the link's in one direction", 0.8, 0.002, 1.0, 0.3, 0.15),
    "ceiling": _d("byte/s", "rate of a long message through the host's memory, where the link would allow more",
                  12e9, 1e8, 1e12, 0.7, 1.0, f"{_FITTED}: what NCCL's source takes PCIe 3 for (graph/topo.h)"),
    "hop": _d("s", "from one device to the next, of an empty message", 1e-6, 1e-8, 1e-3, 0.7, 0.5),
    "chunk": _d("s", "what a piece of a message costs on its way through the devices, beside its bytes",
                5e-6, 1e-9, 1e-3, 0.7, 0.5),
    "start": _d("s", "the kernel's start and end, and the gap before it", 5e-6, 1e-6, 1e-3, 0.5, 0.4),
    "peer_start": _d("s", "more of it where every device sends to every other one", 2e-6, 1e-8, 2e-5, 0.7, 0.3),
    "copy_share": _d("1", "rate at which a rank's own part is copied, of DRAM bandwidth", 0.3, 0.001, 1.0, 0.5, 0.3),
    "nvls_start": _d("s", "latency of adding up in the switch", 1.5e-5, 1e-6, 2e-4, 0.7, 0.0),
    "nvls_share": _d("1", "bandwidth while the switch adds up, of the link's in one direction",
                     0.65, 0.2, 1.0, 0.3, 0.0),
}  # fmt: skip

LINK_PARTS = ("share", "hop", "chunk")
HOST_PARTS = ("ceiling", "hop", "chunk")  # of those through the host's memory, where the ceiling hides the share
DEVICE_PARTS = ("start", "peer_start", "copy_share")

#: Kinds of links whose bandwidth a datasheet does not say so that kinds could be compared: how far they may be off.
_FAR = {"pcie-host": 1.5, "pcie-sockets": 2.0, "loopback": 2.0}


def between(name: str, of: str) -> float:
    """How far a kind of link, or a generation of devices, may be from the others in this constant, in log units."""
    if of in _FAR or of == "cpu":
        return max(LINK_CONSTANTS[name].between, _FAR.get(of, 2.0))
    return LINK_CONSTANTS[name].between


#: What no campaign measures of collectives, by "NAME OF-WHAT": value, standard error relative to it, source.
STATED: dict[str, tuple[float, float, str]] = {
    "share ethernet": (0.75, 0.2, f"{_STATED}: TCP of one stream"),
    "hop ethernet": (1.0e-5, 0.7, f"{_STATED}: NCCL's proxy thread and two copies, beside the network's own latency"),
    "chunk ethernet": (2.0e-5, 0.7, _STATED),
    "share infiniband": (0.90, 0.1, f"{_STATED}: 45 of 50 GB/s, as nccl-tests are reported to reach"),
    "hop infiniband": (4.0e-6, 0.7, f"{_STATED}: NCCL's proxy thread, beside the network's own latency"),
    "chunk infiniband": (8.0e-6, 0.7, _STATED),
    "share loopback": (0.05, 0.7, _MEASURABLE),
    "hop loopback": (2.5e-5, 0.7, _MEASURABLE),
    "chunk loopback": (1.0e-5, 1.0, _MEASURABLE),
    "copy_share cpu": (0.02, 0.7, _MEASURABLE),
    "start cpu": (3.0e-5, 0.7, _MEASURABLE),
}


# Of what a board draws.


_IDLE = f"{_STATED}: about what nvidia-smi shows of T4, A10, A100 and H100 that idle with their memory at full clock"
_PINS = "O'Connor et al., Fine-Grained DRAM, MICRO 2017: HBM2 3.9 pJ/bit, GDDR5 14 pJ/bit; and the controller"
_VOLTAGE = "Guerreiro et al., GPGPU Power Modeling for Multi-domain Voltage-Frequency Scaling, HPCA 2018: voltage is "
_VOLTAGE += "flat at low clocks, then rises with them"

#: Made by `calibration/make/power.py`, the same for all GPUs.
ENERGY_CONSTANTS: dict[str, Description] = {
    "stand_by": _d("1", "share of the board's power that it draws while nothing runs, beside its memory's interface",
                   0.11, 0.02, 0.4, 0.2, 0.0, _IDLE),
    "hbm_interface": _d("J/byte", "power of stacked memory's interface by the bandwidth that it offers, used or not",
                        10e-12, 1e-12, 50e-12, 0.4, 0.0, _IDLE),
    "gddr_interface": _d("J/byte", "power of the interface of memory beside the chip, by the bandwidth that it "
                         "offers, used or not", 68e-12, 5e-12, 200e-12, 0.3, 0.0, _IDLE),
    "sm_energy": _d("J/cycle", "an SM's clocks and schedulers while they issue or fetch, in a 16 nm process",
                    0.5e-9, 0.02e-9, 5e-9, 0.7, 0.0, _STATED),
    "cache_energy": _d("J/byte", "a byte through the last-level cache and to the SM, in a 16 nm process",
                       100e-12, 5e-12, 600e-12, 0.7, 0.0, _STATED),
    "hbm_energy": _d("J/byte", "a byte through stacked DRAM", 45e-12, 10e-12, 200e-12, 0.3, 0.0, _PINS),
    "gddr_energy": _d("J/byte", "a byte through DRAM beside the chip", 110e-12, 20e-12, 400e-12, 0.3, 0.0, _PINS),
    "voltage_floor": _d("1", "lowest voltage of the SMs, of that at the full clock",
                        0.65, 0.4, 1.0, 0.15, 0.0, _VOLTAGE),
    "voltage_slope": _d("1", "by how much of itself voltage falls as the clock falls by all of itself",
                        0.6, 0.05, 1.0, 0.3, 0.0, _VOLTAGE),
    "held_share": _d("1", "mean watts of a board that its limit holds down, of the limit: controllers keep a distance",
                     0.95, 0.8, 1.0, 0.04, 0.0, _STATED),
    "clock_floor": _d("1", "lowest clock of the SMs under load, of the boost", 0.12, 0.05, 0.5, 0.1,
                      0.0, "nvidia-smi -q -d SUPPORTED_CLOCKS: 135 MHz (V100), 210 MHz (A100, A40, H100)"),
}  # fmt: skip


# What is fitted on what: stages, each on the ops that a few constants govern, after the stages that it builds on.


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
_CONVOLUTIONS = frozenset(CONVOLUTIONS)

STAGES = (
    Stage(
        name="streams",
        ops=frozenset({*ELEMENTWISE, "llm_add", "quantize", "llm_norm", "llm_act", "llm_gelu", "llm_rope"}),
        dtypes=_HALF | _SINGLE,
        constants=(
            "memory_share", "early_memory", "kernel_ramp_cycles", "l2_bytes_per_clock", "cache_share", "access_cycles",
        ),
    ),
    Stage(
        name="products on the tensor core",
        ops=frozenset({"mm", "linear", "bmm"}),
        dtypes=_HALF,
        constants=(
            "issue_share", "matrix_tile_loss", "matrix_prologue", "latency_cycles", "matrix_energy",
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
        constants=("column_cycles", "thread_cycles"),
    ),
    Stage(
        name="products on the CUDA cores",
        ops=frozenset({"mm", "linear", "bmm"}),
        dtypes=_SINGLE,
        constants=("simt_energy", "single_tensor_core_share"),
        own=("product_memory_share", "issue_share"),
    ),
    Stage(
        name="convolutions on the CUDA cores",
        ops=_CONVOLUTIONS,
        dtypes=_SINGLE,
        constants=("simt_convolution", "simt_weight"),
        library=CUDNN,
    ),
    Stage(
        name="convolutions on the tensor core",
        ops=_CONVOLUTIONS,
        dtypes=_HALF | {"tf32"},
        constants=("untuned_convolution",),
        library=CUDNN,
    ),
    Stage(
        name="convolutions by MIOpen",
        ops=_CONVOLUTIONS,
        dtypes=_HALF | _SINGLE,
        constants=(
            "miopen_simt", "miopen_simt_weight", "miopen_latency_cycles", "miopen_half", "emulated_half",
            "untuned_bf16", "naive_cycles", "repeat_gap",
        ),
        library=MIOPEN,
    ),
    Stage(
        name="attention",
        ops=frozenset({"attention", "attention_call", "attention_encoder"}),
        dtypes=_HALF,
        constants=("attention_share", "attention_block_cycles"),
        own=("cache_share", "l2_bytes_per_clock"),
    ),
)  # fmt: skip
