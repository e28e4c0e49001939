"""Words that newcomers know from elsewhere, and what is written for them here."""

from __future__ import annotations

import re
from collections.abc import Collection
from importlib import import_module

from rooflinekit.errors import nearest

#: Words without their hyphens | what to write: the first answer whose options the command has. Where a number was typed
#: it takes the place of the one in braces.
_LINES = """
training train backward bwd backprop fwd-bwd forward-backward grad with-grad | --mode training
    | leave it out: every --recipe is a training step | rooflinekit predict … --mode training, or rooflinekit train …
inference infer eval evaluate no-grad test | --mode inference | leave it out: an --engine only serves
    | rooflinekit predict … --mode inference
forward fwd forward-only | --mode inference, or --mode forward for training mode without gradients
amp mixed-precision use-amp mixed | --autocast bf16, or --autocast fp16
    | leave it out: every --recipe computes in bf16 | --weights bf16
bf16 bfloat16 | --autocast bf16 (weights stay fp32), or --dtype bfloat16 | --weights bf16
    | leave it out: every --recipe computes in bf16
fp16 half float16 f16 | --autocast fp16 (weights stay fp32), or --dtype float16 | --weights fp16
    | leave it out: every --recipe computes in bf16
fp32 float32 float full-precision | --no-tf32; without --dtype the model keeps its own fp32
    | leave it out: every --recipe computes in bf16 | --weights, with bf16, fp8, int8 or int4
fp64 double float64 | --dtype float64 | leave it out: every --recipe computes in bf16
    | --weights, with bf16, fp8, int8 or int4
fp8 int8 int4 fp4 quantize quantization quantized load-in-8bit load-in-4bit awq gptq
    | --weights, with fp8, int8, int4 or fp4
    | --fp8, the only format below 16 bits
    | rooflinekit serve … --weights for language models; others run in 16 bits or more
precision torch-dtype param-dtype compute-dtype model-dtype data-type dtype | --dtype bfloat16, or --autocast bf16
    | --weights bf16, fp8 or int4 | --fp8; without it every --recipe computes in bf16
allow-tf32 matmul-precision | --tf32
compile compiled torch-compile torchcompile inductor dynamo jit script fused | --execution compiled
    | --recipe torchtitan-compiled | leave it out: an --engine has kernels of its own
eager | --execution eager
cuda-graphs cuda-graph cudagraph cudagraphs graph | --execution cuda-graph | --graph-sizes 1,2,4,8,16
reduce-overhead | --execution reduce-overhead
max-autotune autotune | --execution max-autotune
backend compile-mode | --execution, with eager, compiled, cuda-graph or reduce-overhead
nhwc channels-last memory-format | --channels-last
device gpu-name gpu-type hardware hw accelerator cuda rocm card d | --gpu nvidia-l4 | --cluster dgx-h100
cpu cpus host hosts | --host, for the CPU beside the GPU; --gpu takes CPUs too | --kind cpu
    | --host-work, for when the CPU plans steps
batch batch-size batchsize bs b bsz n mini-batch global-batch-size gbs train-batch-size images
    | --batch {32} | --input batch,3,224,224 --size batch={32}
micro-batch-size mbs per-device-train-batch-size | --micro-batch {4} | --accumulate {4}, parts of --batch
    | --batch {32}
seq seq-len seqlen sequence-length seq-length max-length context-length context ctx max-seq-len max-model-len
    | --seq {512} | --input batch,seq:int64 --size seq={512} | --input {512}, the tokens of a prompt
shape input-shape input-size inputs img img-size image-size resolution s | --input batch,3,224,224, with --size batch=32
    | --input 1024, the tokens of a prompt | --seq 4096
optim opt optimizer adam adamw sgd | --optimizer AdamW, with --mode training
    | leave it out: every --recipe trains with Adam
criterion loss loss-fn | --loss cross_entropy, with --mode training | leave it out: every --recipe has cross-entropy
labels label targets target | --target batch:int64, beside --loss
model model-name model-path arch network net m config yaml | the model as the first word after the command
num-layers n-layers layers-count hidden-size d-model num-heads vocab-size num-classes
    | a model with this size as the first word after the command, such as transformers:path/to/config.json
steps num-steps max-steps iterations iters num-iterations niter n-iter epochs warmup warmup-steps runs n-runs num-runs
    repeat repeats reps trials samples | --tokens 1e12, of a whole run | --samples 1e9, of a whole run
    | --requests {1000}, or --warm-up, which are not counted
    | leave it out: the answer is of one step; rooflinekit cost … --samples 1e9 prices a run
lr learning-rate weight-decay wd betas eps scheduler lr-scheduler seed random-seed
    | leave it out: the predicted time does not depend on it
data dataset data-path dataset-size train-data pretrained weights load checkpoint-path ckpt tokenizer prompt prompts
    | leave it out: neither data nor weights are read, only shapes
output out o save export output-file outfile file save-path output-path output-dir outdir dir | --out FILE
    | --plot FILE.pdf, --trace FILE.json, or --json > FILE
    | --plot FILE.pdf, or --json > FILE | --figure FILE.pdf, or --json > FILE | --json > FILE
quiet q short terse brief | --brief | --json
json-lines jsonl json-out json-output | --json
vs versus against baseline compare-to | --gpu l4 --gpu h100
ridge intensity arithmetic-intensity ai | rooflinekit crossover …
co2 emissions | --carbon 0.4, kg for each kWh | rooflinekit cost … --carbon 0.4
md markdown-table markdown | --markdown | --json
csv to-csv csv-out tsv table | --csv | --json; rooflinekit sweep … --out writes CSV
summary torchinfo tree modules | rooflinekit summary …
parquet | --out FILE.parquet | --csv | --json; rooflinekit sweep … --out writes parquet
v verbose vv debug log-level detail details breakdown layers per-layer by-module | --by module | --details | --json
by-op ops kernels per-op per-kernel | --by kernel
plot figure chart roofline roof png pdf svg | --plot FILE.pdf | --out FILE.pdf | --figure FILE.pdf
    | rooflinekit plot … --out FILE.pdf
width height dpi figsize title theme style | rooflinekit plot … --width page --out FILE.pdf
format fmt output-format | --csv, --markdown or --json | --json
sort sort-by top top-k filter | rooflinekit compare … --sort time
interval confidence ci error uncertainty throughput speed tokens-per-second samples-per-second energy mfu hfu
    utilization efficiency
    peak | --terms | leave it out: it is part of the answer
html report open browser | rooflinekit report … --out FILE.html
timeline perfetto chrome-trace profile | --trace FILE.json | rooflinekit predict … --trace FILE.json
memory-stats memory-profile memory-trace actual-memory peak-memory max-memory-allocated
    | --measured-memory FILE.pickle|FILE.json | rooflinekit predict … --measured-memory FILE.pickle|FILE.json
expandable-segments max-split-size-mb pytorch-cuda-alloc-conf pytorch-alloc-conf alloc-conf fragmentation
    | --allocator expandable_segments:True | rooflinekit predict … --allocator expandable_segments:True
memory-viz memory-snapshot | --snapshot FILE.pickle | rooflinekit predict … --snapshot FILE.pickle
memory vram ram max-batch max-batch-size | --largest-batch | --memory-min '40 GB'
flops flop gflops tflops macs params parameters | rooflinekit summary …
sdpa attention flash-attention flash-attn use-flash-attention attn-implementation | --attention flash
    | --recipe, each of which has its own | --engine, each of which has its own
torch-version torch pytorch version | --like 1.12, the release of PyTorch to predict
tdp watts power power-cap | --power-limit '250 W' | rooflinekit power …
clock frequency clocks | --sm-clock '1.2 GHz'
num-workers threads dataloader loader | --loader-rate 2000, in samples a second | --workers {4}
pin-memory pinned h2d | --copy pinned
gpu | --cluster dgx-h100
num-gpus n-gpus ngpus ngpu gpu-count num-devices world-size nproc nproc-per-node nodes node n-nodes nnodes gpus devices
    | --gpus {8}
    | --tp {8}, with --cluster dgx-h100
    | rooflinekit parallel … --cluster dgx-h100 --gpus {8} | --gpu l4 --gpu h100
ddp fsdp zero zero3 zero-stage stage deepspeed parallel strategy data-parallel distributed
    | --strategy ddp, or --strategy fsdp | --sharding zero-1, zero-2 or zero-3
    | rooflinekit parallel … --cluster dgx-h100 --strategy ddp, or fsdp
tensor-parallel tensor-parallel-size tp | --tp {2} | --tensor {2} | rooflinekit parallel … --tensor {2}
pipeline-parallel pipeline-parallel-size pp | --pp {2} | --pipeline {2} | rooflinekit parallel … --pipeline {2}
expert-parallel expert-parallel-size enable-expert-parallel ep moe | --ep {8} | --expert {8}
    | rooflinekit parallel … --expert {8}
context-parallel context-parallel-size cp | --cp {2} | --context {2} | rooflinekit parallel … --context {2}
sequence-parallel sp | --sequence | leave it out: --tp of every --recipe also splits the sequence
    | rooflinekit parallel … --tensor 8 --sequence
cpu-offload offload-optimizer offload optimizer-offload | --offload | rooflinekit parallel … --offload
cluster nvlink interconnect link bandwidth topology infiniband | --cluster dgx-h100
    | rooflinekit parallel … --cluster dgx-h100 --gpus 8
data-parallel-size dp | --dp {2} | --gpus {8} | rooflinekit parallel … --cluster dgx-h100 --gpus {8}
gradient-checkpointing activation-checkpointing grad-checkpointing grad-ckpt checkpointing checkpoint recompute remat
    | --checkpoint all | --recompute full
    | rooflinekit parallel … --checkpoint all
gradient-accumulation-steps gradient-accumulation grad-accum accum accumulation | --accumulate {4} | --micro-batch 1
    | rooflinekit parallel … --accumulate {4}
kv-cache-dtype kv-cache | --kv fp8 | rooflinekit serve … --kv fp8
lora lora-rank max-loras peft adapter adapters | --adapters {4} | rooflinekit serve … --adapters {4}
gpu-memory-utilization mem-fraction-static kv-cache-memory swap-space | --memory-share 0.9
    | rooflinekit serve … --memory-share 0.9
clients users concurrency max-concurrency | --batch {32}, beside --input and --output | rooflinekit serve … --batch {32}
isl input-len random-input-len prompt-len | --input {1024}, beside --output | rooflinekit serve … --input {1024}
max-num-seqs | --sequences {256} | rooflinekit serve … --batch {32}
request-rate qps rps rate | --rate {4}/s | rooflinekit serve … --rate {4}/s
max-tokens max-new-tokens output-length output-len random-output-len osl | --output {256}
    | rooflinekit serve … --output {256}
require constraint latency max-latency max-time slo ttft tpot itl | --require 'time<20 ms' | --slo ttft=500ms,tpot=40ms
    | rooflinekit search … --minimize price --require 'time<20 ms'
price cost prices usd dollars budget hourly price-hour | --price h100=2.99 | --price-per-hour {2}
    | rooflinekit cost … --price h100=2.99
"""
_OPTIONS: dict[str, list[str]] = {
    words: answers
    for words, *answers in (line.split(" | ") for line in _LINES.strip().replace("\n    ", " ").splitlines())
}

_COMMANDS: dict[str, str] = {
    "run estimate time latency throughput simulate benchmark-model inference eval": "predict",
    "memory vram max-batch": "predict … --largest-batch",
    "flops macs params torchinfo": "summary",
    "training finetune": "predict … --mode training, or train for language models on clusters",
    "bench benchmark": "measure",
    "gpus gpu device list ls info hardware": "devices",
    "host cpus": "hosts",
    "cluster": "clusters",
    "diff why": "explain",
    "roofline figure draw": "plot",
    "html": "report",
    "optimize tune optimise": "advise",
    "ddp fsdp distributed multi-gpu": "parallel",
    "llm generate vllm decode": "serve",
    "price prices money": "cost",
    "energy watts": "power",
    "spec": "specs",
    "version": "--version",
    "help": "--help",
}

#: How alike a word and an option have to be, hyphens included, for the one to be a slip of the other.
_ALIKE = 0.77
_NAMES = re.compile(r"--[a-z0-9-]+")
_EXAMPLE = re.compile(r"\{(\d+)\}")
_ELSEWHERE = re.compile("; |rooflinekit")  # what follows is no option of the command at hand
_OPTION = {word: answers for words, answers in _OPTIONS.items() for word in words.split()}
_COMMAND = {word: answer for words, answer in _COMMANDS.items() for word in words.split()}


def option_hint(typed: str, known: Collection[str], value: str = "") -> str:
    """A clause on what to write for an option that a command does not have; empty where nothing is like it.

    known: the command's options, each with its hyphens; one is offered by its spelling, where the word is not one that
    everybody knows. value: the word that was typed behind it.

    >>> option_hint("--training", ["--mode", "--trace"])
    ': write --mode training'
    >>> option_hint("--moode", ["--mode", "--trace"])
    "; did you mean '--mode'?"
    >>> option_hint("--bs", ["--batch"], value="64")
    ': write --batch 64'
    """
    answers = _OPTION.get(typed.lstrip("-").replace("_", "-").lower(), [])
    if value and not value.isdecimal():  # it is no number, so what has no number comes first
        answers = sorted(answers, key=lambda answer: bool(_EXAMPLE.search(answer)))
    for answer in answers:
        if set(_NAMES.findall(_ELSEWHERE.split(answer)[0])) <= set(known):
            written = _EXAMPLE.sub(value if value.isdecimal() else r"\1", answer)
            return f": {written}" if written.startswith("leave it out") else f": write {written}"
    return _elsewhere(typed) or nearest(typed, known, 1, _ALIKE)


def _elsewhere(typed: str) -> str:
    """Which other commands have the option. Their files are imported for that, as nothing else needs them."""
    app, typer = import_module("rooflinekit.cli.app"), import_module("typer")
    commands = typer.main.get_group(app.program(*app.COMMANDS)).commands
    having = [name for name, command in commands.items() if any(typed in one.opts for one in command.params)]
    return f": it is an option of rooflinekit {', '.join(having)}" if having else ""


def command_hint(typed: str, known: Collection[str]) -> str:
    """The same of a command.

    >>> command_hint("gpus", ["devices"])
    ': write rooflinekit devices'
    """
    answer = _COMMAND.get(typed.replace("_", "-").lower())
    return f": write rooflinekit {answer}" if answer else nearest(typed, known, 1)
