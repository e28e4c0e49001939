"""The record of a number of the model, and the numbers that no campaign tells: stated, the same for every device.

Constants that measurements tell are in `calibration/fits`, facts about a device in its specification. Where a source
says nothing of an error, it is judged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

CAMPAIGNS_OF = "calibration/campaigns: "  # in the source of a constant, before the GPUs


@dataclass(frozen=True, slots=True)
class Constant:
    """A number of the model, with how sure it is and where it comes from."""

    value: float
    stderr: float  # relative to the value
    unit: str
    meaning: str
    source: str

    @property
    def gpus(self) -> list[str]:
        """The GPUs whose campaigns determined it, by its source, where they are not all."""
        return [gpu for gpu in self.source.partition(CAMPAIGNS_OF)[2].split(", ") if gpu]


_KERNELBENCH = "KernelBench, half of its problems"
_LEDGER = "benchmarks/ledger.py DATA --sources"

#: Of kernels.
NUMBERS: Mapping[str, Constant] = {
    "simt tile loss": Constant(
        0.5, 0.5, "1", "loss of tiles on the CUDA cores, of `matrix_tile_loss`",
        "fitted by itself it is 8 ± 4 elements, where that is 16",
    ),
    "fma slots": Constant(
        0.75, 0.1, "1", "instructions in the loop of a product on the CUDA cores that multiply and add",
        _KERNELBENCH + ": H100 PCIe, 0.70 to 0.80",
    ),
    "fma slots of large tiles": Constant(
        0.8, 0.05, "1", "the same of Hopper's tiles of 256×128", _KERNELBENCH + ": H100 PCIe, 0.76 to 0.85"
    ),
    "plain energy": Constant(
        0.87, 0.05, "1", "energy of a FLOP of a plain product alone on the CUDA cores, of a linear layer's, where the "
        "compute capability is 8.6 to 8.9",
        _KERNELBENCH + ": RTX A6000 0.88, L40S 0.97",
    ),
    "TN product": Constant(
        0.63, 0.06, "1", "rate of a linear layer's product on the CUDA cores, of that of others, where the compute "
        "capability is 8.6 to 8.9",
        _KERNELBENCH + ": L40S, RTX A6000",
    ),
    "call kernels": Constant(
        3, 0.3, "1", "kernels of hardly any work in a serving library's call of attention, beside that and the cache's",
        "calls in CUDA graphs take 8.8, 7.2, 5.9 and 4.0 µs longer on A100, H100, B200 and L40S (aiconfigurator): 4.0, "
        "4.4, 3.5 and 2.9 kernels",
    ),
    "wider energy": Constant(
        1.39, 0.2, "1", "energy of a TF32 FLOP on the tensor core, of a 16-bit one's; of fp32 its square",
        "an MI100 sustains 40 of its 46 TFLOP/s in fp32 where it has 185 in fp16 (MIOpen's tuning data)",
    ),
    "norm by numbers": Constant(
        0.5, 0.3, "1", "of a row's time on an element, what goes with the number and not with its bytes",
        "vidur's layer norms in fp16 on A100 and A40 take three quarters of what fp32 takes on an element",
    ),
    "join by shuffles": Constant(
        0.37, 0.3, "1", "of `thread_cycles`, what a softmax's blocks of 1024 threads take of which warps shuffle",
        "standard attention in fp16, 2,048 and 4,096 keys, without its products (FlashAttention's and SageAttention's "
        "figures): A100 0.35 to 0.45, RTX 3090 and 4090 0.4 to 0.5, H100 0",
    ),
    "index division": Constant(
        46, 0.3, "cycle", "of a CUDA core, for an integer division with its remainder, by which PyTorch finds a pixel",
        "some 23 operations of 2 cycles each (conv_depthwise2d_grad_weight_kernel); fitted, it came to 44 ± 15",
    ),
    "polynomials": Constant(
        0.25, 0.4, "1", "of the exponentials of attention in tensor memory, polynomials on the CUDA cores",
        "FlashAttention 4: 10 to 25 %",
    ),
    "shared softmax": Constant(
        0.2, 0.25, "cycle", "of an SM for a score, where attention's softmax passes shared memory (memory-efficient)",
        "on A100 and H100 0.15 to 0.25 (figures of SageAttention and FlashAttention), some 26 instructions; RTX 3090 "
        "and 4090, left out, are told 5 % off by it, 9 to 11 without",
    ),
    "average place": Constant(
        4, 0.5, "load", "what a thread of an average pooling takes to find its window, in single loads",
        "1×8 numbers take H100, L40S and RTX A6000 3 to 4 cycles of an SM (KernelBench): 64-bit numbers are divided",
    ),
    "window sharers": Constant(
        3, 0.3, "1", "threads of a depthwise convolution, forward with channels last, that share what they fetch",
        "neighbours of a 3×3 window have two of its three columns in common; timm's steps on RTX 3090 and 4090",
    ),
    "summed channels": Constant(
        64, 0.5, "1", "channels a group beyond which kernels that sum them one by one take no longer",
        "training steps of timm in channels last (RTX 3090, PyTorch 1.12)",
    ),
    "template product": Constant(
        0.9, 0.1, "1", "rate of a product's Triton template on a tensor core, of the library's kernel", _KERNELBENCH,
    ),
    "template convolution": Constant(
        0.5, 0.3, "1", "rate of a convolution's Triton template on a tensor core, of the library's kernel",
        _KERNELBENCH,
    ),
    "masked": Constant(
        0.75, 0.5, "1", "what a byte of a loop over a concatenation costs beyond another", _KERNELBENCH,
    ),
    "handover": Constant(
        0.4, 0.5, "launch", "of the CPU for each step of chains side by side: an event is recorded and waited for",
        "KernelBench's recurrent layers (benchmarks/networks/recurrence.py)",
    ),
    "cache edge": Constant(
        0.15, 0.5, "1", "of a cache's capacity, to either side: the edge beyond which a working set does not stay",
        "sharper where addresses are in one partition (L40S), wider where in two (H100)",
    ),
    "nccl connections": Constant(
        2.5, 0.5, "1", "connections of an NCCL channel that have buffers",
        "the ring's alone from 2.22 on (NCCL_RUNTIME_CONNECT), before it up to three of a tree (NCCL_MAX_TREE_ARITY)",
    ),
    "place of an operand": Constant(
        23, 0.3, "cycle", "of a CUDA core, to work out where an operand's element lies that is not at the thread's own",
        "PyTorch's RMS norms in bf16 on A100 (Liger): two broadcast products take 1.08 cycles of an SM for an element",
    ),
    "page fault": Constant(
        0.25e-6, 0.5, "s", "a CPU's page of a large result that is found anew, beside those of all other threads",
        "0.5 to 1 µs alone, of which threads share what does not hold the lock of the pages",
    ),
}  # fmt: skip

_PYTHON = "torch 2.13, Python 3.11, on a CPU with other work; a plain op of a current server takes 7 µs"
_GRAPH_ENTRY = "benchmarks/speed/graph_entry.py, torch 2.13 on a CPU with other work: "

#: Of programs that run on several GPUs: what their CPU takes and what their memory holds beside the ops' own.
PROGRAMS: Mapping[str, Constant] = {
    "copy of a module": Constant(
        1.0, 0.3, "plain op", "CPU time of copying a module, parameter or buffer for one more device (DataParallel)",
        _PYTHON + ": 7 to 8 µs each in torch.nn.parallel.replicate, broadcast left out",
    ),
    "thread": Constant(7.0, 0.3, "plain op", "CPU time of a thread that is started and joined", _PYTHON + ": 47 µs"),
    "sum of a gradient": Constant(
        0.7, 0.3, "plain op", "CPU time of a gradient in reduce_add_coalesced: lists, views, their order",
        _PYTHON + ": 5 µs, the reduction left out",
    ),
    "part of a gradient": Constant(
        0.2, 0.3, "plain op", "likewise for each device that has the gradient", _PYTHON + ": 1.5 µs",
    ),
    "Python of an op": Constant(
        0.05, 0.4, "plain op", "Python's part of an op that a module calls, beyond calling the module",
        "2.0 µs for both (torch 2.13, an activation of one number on a CPU, whose arithmetic is less than 0.3), of "
        "which 1.5 are generic-server's `module`; the rest is 0.05 of its 10 for an op",
    ),
    "Python of an op and module": Constant(
        0.2, 0.4, "plain op", "the same where a host's ops have the module's call in them", "the same measurement",
    ),
    "lock handover": Constant(
        5e-6, 1.0, "s", "from one thread's letting go of Python's lock until a waiting one runs: the system wakes it",
        "stated for a server; 15 µs on a busy virtual machine",
    ),
    "forward graph of a module": Constant(
        1.0, 0.4, "guards", "CPU time of entering one more compiled graph, of a module compiled by itself",
        _GRAPH_ENTRY + "27 to 29 µs, taken as the guards of a step (30 µs)",
    ),
    "backward graph of a module": Constant(
        0.6, 0.4, "guards", "the same in the backward pass", _GRAPH_ENTRY + "15 to 16 µs",
    ),
    "forward graph of a piece": Constant(
        2.0, 0.4, "guards", "the same of a piece that DDPOptimizer cuts, called through modules",
        _GRAPH_ENTRY + "39 to 82 µs, the least with nothing else to do",
    ),
    "backward graph of a piece": Constant(
        1.6, 0.4, "guards", "the same in the backward pass", _GRAPH_ENTRY + "34 to 70 µs",
    ),
    "Megatron's issue": Constant(
        5.9, 0.1, "1", "CPU time of Megatron's layers over that of their ops alone: Python of autograd functions, "
        "TorchScript, generators' states around what is computed again",
        "whole steps of half of vtrain's models by hash (benchmarks/clusters/accuracy.py --fit); the other half gives "
        "5.9 too. Releases since are taken to be alike",
    ),
    "calls of eight bits": Constant(
        4, 0.3, "call", "that make a tensor 8 bits: its largest element, the scale, the cast with its transpose, the "
        "scales' order", "as read in Transformer Engine 2",
    ),
    "optimizer on the CPU": Constant(0.7, 0.3, "1", "of the host's DRAM bandwidth, for an optimizer there", "stated"),
    "reserve": Constant(
        1.06, 0.04, "1", "what the allocator reserves, of what is allocated at most: blocks of other sizes",
        "1.02 to 1.15 are commonly seen",
    ),
    "least room": Constant(
        1.01, 0.01, "1", "of what is allocated, the least room in which the allocator still places every block: near "
        "the end of memory it gives back what it keeps",
        "`step.verdict` finds 1.000 to 1.011 for steps of decoders of 0.4 to 2.7 billion weights by four recipes",
    ),
    "fullest experts": Constant(
        1.25, 0.3, "1", "tokens that come to the fullest GPU's experts, over the mean: the spread of it, as a factor",
        "room that models were trained with (Fedus et al. 2021, Switch Transformers, section 2.2); not fitted",
    ),
}  # fmt: skip

_VIDUR = "vidur's cpu_overheads (vLLM of 2024 on an A100), "
_STREAMS = "half of aiconfigurator's e2e_serving_"

#: Of engines that serve, their servers and kernels.
ENGINES: Mapping[str, Constant] = {
    "CPU of a step": Constant(
        0.802e-3, 0.02, "s", "scheduling, inputs, sampling, handling of tokens",
        _VIDUR + "a line through 26 rows without tensor parallelism (benchmarks/serving/accuracy.py fits it again)",
    ),
    "CPU of a sequence": Constant(42.3e-6, 0.01, "s", "the same for each sequence of a step", _VIDUR + "the same line"),
    "CPU of a shared step": Constant(
        0.75e-3, 0.5, "s", "more where inputs are handed to the processes of other GPUs",
        _VIDUR + "52 rows on 2 and 4 GPUs less that line; by model 0.62 to 1.4 ms: larger vocabularies take more",
    ),
    "CPU of a token": Constant(
        9e-9, 0.5, "s", "vLLM's up to 0.7, for each token that a step's sequences hold: lists of pages of 16 tokens",
        "half of llm_inference_bench's sets of A100 and H100: 12.7 % off without, 9.6 with; the other half 17.5, 9.9",
    ),
    "CPU of a shared token": Constant(
        12e-9, 0.5, "s", "more where a step's inputs go to other processes", "the same halves",
    ),
    "request": Constant(
        5e-3, 0.4, "s", "from a client's sending to the engine's queue: HTTP, template, tokenizer",
        _STREAMS + "h100_sxm and _b200_sxm; the other half's first tokens 15.7 to 12.5 %; blis, which told nothing, "
        "14.0 to 7.0",
    ),
    "token of a request": Constant(
        2e-6, 0.5, "s", "the same for each token of its prompt", "the same streams",
    ),
    "TensorRT-LLM's request": Constant(
        12e-3, 0.3, "s", "TensorRT-LLM's from 1.0 on: through a proxy's process to that of the first GPU",
        _STREAMS + "h100_sxm; the other half 17.9 to 15.5 %, B200 6.0 to 5.7 (on 8 GPUs 13.8 to 8.9)",
    ),
    "SGLang's token": Constant(
        45e-6, 0.1, "s", "of SGLang's tokenizer manager, one asyncio loop, to hand out a token of an answer",
        _STREAMS + "h200_sxm_sglang: 38.7 % off without, 11.7 with; the other half 52.5 and 16.0",
    ),
    "SGLang's request": Constant(1e-3, 1.0, "s", "the same to take up a request beside its tokens", "the same half"),
    "SGLang's thread": Constant(
        0.25, 0.3, "1", "part of its time by which that thread may be busy for longer or shorter",
        "where it limits a token takes it 46 to 66 µs, longer answers more, which is not modelled",
    ),
    "launches of a layer": Constant(
        0.6e-3, 0.1, "s", "of TensorRT-LLM 1.0 and vLLM, where prompts are read",
        "Llama 3.1 8B on eight H100, five numbers of clients (TensorRT-LLM 1.0.0rc3): a prompt adds 17 to 22 ms for 32 "
        "layers where the GPU needs 10; Qwen3 32B's 64 layers 34 to 40",
    ),
    "FlashAttention's decoding call": Constant(
        14e-6, 0.3, "s", "FlashAttention 2's beside its traffic, over a cache of 16 bits whose heads share keys: "
        "blocks share a sequence, a second kernel puts together what they found",
        "half of 400 sizes on A100 (vLLM 0.24): 12.7 to 4.3 %; the other half 14.1 to 4.1; L40S 2 % too fast",
    ),
    "TensorRT-LLM's decoding call": Constant(
        8e-6, 0.5, "s", "the same of TensorRT-LLM's before Blackwell",
        "half of 500 sizes on H100 (1.3): 10.0 to 8.1 %; the other half 12.3 to 7.8, L40S 2.3 to 1.8; A100's table has "
        "twice the datasheet's bandwidth and is no witness",
    ),
    "expert of a layer": Constant(
        0.18e-6, 0.2, "s", "for each expert of a layer, in which vLLM counts, aligns and sorts tokens by expert",
        "nine sets of GPT-OSS on H100, MiniMax M2 on H100 and B200, Kimi K2 in int4: halves tell 0.2 and 0.17; Mixtral "
        "on A100, which told nothing, 4.9 to 1.6 %; TensorRT-LLM's rows tell none",
    ),
    "grouped products": Constant(
        0.15, 0.3, "1", "of the peak, what vLLM's get where the kernel scales 8 bits or unpacks 4 (Triton's, Marlin's)",
        "the same sets: both halves tell it; with both 7.7 and 12.5 % per token became 4.3 and 4.6",
    ),
    "expert's scores": Constant(
        0.15, 0.5, "1", "correlation of the scores that an expert gets of two tokens",
        "half of 17 sets of mixtures tells 0.08, the other 0.25; the half that told nothing 11.8 to 9.9 % per token, "
        "18.7 to 12.1",
    ),
    "barrier": Constant(
        4.6e-6, 0.1, "s", "of a sum of few bytes over 2 to 8 GPUs by vLLM's or SGLang's kernel",
        "aiconfigurator's collectives_h100_sxm, 16 KiB: 4.4 to 5.2 µs less the bytes' time; SGLang's of 0.5.14 2.7",
    ),
    "TensorRT-LLM's barrier": Constant(2.9e-6, 0.15, "s", "the same of TensorRT-LLM's kernel", "there 2.8 to 3.8 µs"),
    "Blackwell's barrier": Constant(
        1.6, 0.1, "1", "the same over Blackwell's links, of Hopper's",
        "aiconfigurator's collectives_b200_sxm: 7.1 to 8.2 and 5.2 to 6.0 µs",
    ),
    "second barrier": Constant(
        0.9, 0.2, "barrier", "where each GPU sums a part and gathers the others' parts",
        "the same on H100, 8 GPUs, 1 MiB: 14.8 µs, of which the bytes take 6.1",
    ),
}  # fmt: skip

#: What kernels, steps and answers are off together beside what was measured of them: standard deviations of ln.
SPREADS: Mapping[str, Constant] = {
    "day": Constant(
        0.05, 0.3, "1", "all kernels of a step: libraries, drivers and clocks of the day",
        "two collections of the same products on one GPU (docs/accuracy.md)",
    ),
    "backward pass": Constant(
        0.08, 0.3, "1", "all kernels of a step with a backward pass: campaigns hold few of its operators",
        "timm's training steps: with it 92 % of half of the families are inside with channels last, 94 first",
    ),
    "compiled": Constant(0.3, 0.3, "1", "kernels that inductor makes", _KERNELBENCH),
    "transposed": Constant(0.4, 0.3, "1", "transposed convolutions", _KERNELBENCH),
    "sums": Constant(
        0.3, 0.3, "1", "sums by few blocks, columns, windows, and products whose rows begin off 16 bytes", _KERNELBENCH,
    ),
    "decoder training": Constant(
        0.08, 0.3, "1", "a decoder's training step by a recipe (Megatron-LM, NeMo, LLM Foundry)", _LEDGER,
    ),
    "per token": Constant(
        0.05, 0.3, "1", "a token of an engine that serves (vLLM, TensorRT-LLM, SGLang, DeepSpeed-MII)", _LEDGER,
    ),
    "first token": Constant(0.1, 0.3, "1", "its first token", _LEDGER),
    "described memory": Constant(
        0.06, 0.3, "1", "what a decoder's training step allocates",
        "peaks of Megatron's ranks, of which nine of ten are within 10 % (benchmarks/memory/accuracy.py)",
    ),
    "several GPUs": Constant(0.024, 0.3, "1", "a traced step on several GPUs, beside that on one (gavel)", _LEDGER),
}  # fmt: skip
