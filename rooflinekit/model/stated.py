"""Numbers of the model that no campaign tells: stated, the same for every device, each with its source and its error.

Constants that measurements tell are in `calibration/fits`, facts about a device in its specification. Where a source
says nothing of an error, it is judged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Stated:
    """A number, how far it may be off as a standard deviation of its logarithm, and where it is from."""

    value: float
    error: float
    unit: str
    meaning: str
    source: str


_KERNELBENCH = "KernelBench, half of its problems"
_LEDGER = "benchmarks/ledger.py DATA --sources"

#: Of kernels.
NUMBERS: Mapping[str, Stated] = {
    "simt tile loss": Stated(
        0.5, 0.5, "1", "loss of tiles on the CUDA cores, of `matrix_tile_loss`",
        "fitted by itself it is 8 ± 4 elements, where that is 16",
    ),
    "wider energy": Stated(
        1.39, 0.2, "1", "energy of a TF32 FLOP on the tensor core, of a 16-bit one's; of fp32 its square",
        "an MI100 sustains 40 of its 46 TFLOP/s in fp32 where it has 185 in fp16 (MIOpen's tuning data)",
    ),
    "norm by numbers": Stated(
        0.5, 0.3, "1", "of a normalization's time on an element, what goes with the number and not with its bytes",
        "vidur's layer norms in fp16 on A100 and A40 take three quarters of what fp32 takes on an element",
    ),
    "average place": Stated(
        4, 0.5, "load", "what a thread of an average pooling takes to find its window, in single loads",
        "1×8 numbers take H100, L40S and RTX A6000 3 to 4 cycles of an SM (KernelBench): 64-bit numbers are divided",
    ),
    "window sharers": Stated(
        3, 0.3, "1", "threads of a depthwise convolution, forward with channels last, that share what they fetch",
        "neighbours of a 3×3 window have two of its three columns in common; timm's steps on RTX 3090 and 4090",
    ),
    "summed channels": Stated(
        64, 0.5, "1", "channels a group beyond which kernels that sum them one by one take no longer",
        "training steps of timm in channels last (RTX 3090, PyTorch 1.12)",
    ),
    "template product": Stated(
        0.9, 0.1, "1", "rate of a product's Triton template on a tensor core, of the library's kernel", _KERNELBENCH,
    ),
    "template convolution": Stated(
        0.5, 0.3, "1", "the same of a convolution's template", _KERNELBENCH,
    ),
    "tiled": Stated(
        1.0, 0.5, "1", "what a byte costs beyond another that lies across a tile of inductor's", _KERNELBENCH,
    ),
    "masked": Stated(
        0.75, 0.5, "1", "what a byte of a loop over a concatenation costs beyond another", _KERNELBENCH,
    ),
    "handover": Stated(
        0.4, 0.5, "launch", "of the CPU for each step of chains side by side: an event is recorded and waited for",
        "KernelBench's recurrent layers (benchmarks/networks/recurrence.py)",
    ),
    "cache edge": Stated(
        0.15, 0.5, "1", "of a cache's capacity, to either side: the edge beyond which a working set does not stay",
        "sharper where addresses are in one partition (L40S), wider where in two (H100)",
    ),
    "page fault": Stated(
        0.25e-6, 0.5, "s", "a CPU's page of a large result that is found anew, beside those of all other threads",
        "0.5 to 1 µs alone, of which threads share what does not hold the lock of the pages",
    ),
}  # fmt: skip

#: What kernels, steps and answers are off together beside what was measured of them: standard deviations of ln.
SPREADS: Mapping[str, Stated] = {
    "day": Stated(
        0.05, 0.3, "1", "all kernels of a step: libraries, drivers and clocks of the day",
        "two collections of the same products on one GPU (docs/accuracy.md)",
    ),
    "backward pass": Stated(
        0.15, 0.3, "1", "all kernels of a step with a backward pass: campaigns hold few of its operators",
        "the least at which 90 % of timm's training steps of half of the families are inside, in both layouts",
    ),
    "compiled": Stated(0.3, 0.3, "1", "kernels that inductor makes", _KERNELBENCH),
    "transposed": Stated(0.4, 0.3, "1", "transposed convolutions", _KERNELBENCH),
    "sums": Stated(
        0.3, 0.3, "1", "sums by few blocks, columns, windows, and products whose rows begin off 16 bytes", _KERNELBENCH,
    ),
    "decoder training": Stated(
        0.074, 0.3, "1", "a decoder's training step by a recipe (Megatron-LM, NeMo, LLM Foundry)", _LEDGER,
    ),
    "per token": Stated(
        0.11, 0.3, "1", "a token of an engine that serves (vLLM, TensorRT-LLM, SGLang, DeepSpeed-MII)", _LEDGER,
    ),
    "first token": Stated(0.21, 0.3, "1", "its first token", _LEDGER),
    "several GPUs": Stated(0.025, 0.3, "1", "a traced step on several GPUs, beside that on one (gavel)", _LEDGER),
}  # fmt: skip
