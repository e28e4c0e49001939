"""Training steps that others measured on clusters, as cases: a decoder, a recipe, a layout, a place and seconds."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import rooflinekit as rk
from benchmarks.sources.tables import read_table
from rooflinekit.distributed.records import Layout, Recipe, recipe_of
from rooflinekit.errors import RooflinekitError
from rooflinekit.ir.op import DType


@dataclass(frozen=True, kw_only=True)
class Case:
    """A measured step."""

    source: str
    model: str  # the family, by which constants are fitted and judged
    decoder: rk.Decoder
    recipe: Recipe
    layout: Layout
    cluster: str
    gpus: int  # 0: as many as its peak tells
    batch: int
    seq: int
    seconds: float
    peak_bytes: float = 0.0  # that the program logs of one rank
    peak_stage: int | None = None  # the stage that this rank is of; None: the fullest
    note: str = ""


_MPT_CLUSTERS = {
    "a100_40gb": "a100-40gb-x8-1600g", "a100_80gb": "a100-80gb-x8-1600g", "h100_80gb": "h100-x8-cluster",
}  # fmt: skip
#: What tells rows apart: the same ones stand in up to four files.
_MPT_ROW = [
    "model", "gpu", "gpus", "seq", "micro_batch", "global_batch", "tokens_per_s", "precision", "sharding",
    "activation_checkpointing", "mp_mode",
]  # fmt: skip


def mpt(data: Path) -> Iterator[Case]:
    """llm_foundry: MPT under FSDP, rows of several files once. Left out are rows that let the program choose its
    micro-batch, or offload, and four of MPT 13b on A100 that would be at 95 to 178 % of the GPUs' peak. Gradients are
    reduced in the 16 bits of weights also where `mp_mode` is DEFAULT: those rows do not differ from those of PURE.
    """
    table = read_table(data / "llm_foundry" / "mpt_fsdp.csv")
    kept = table[(table.micro_batch >= 1) & ~table.cpu_offload.astype(bool)]
    for row in kept.drop_duplicates(_MPT_ROW).itertuples():
        decoder = rk.Decoder(
            name=f"MPT {row.model}", layers=row.n_layers, hidden=row.d_model, heads=row.n_heads, kv_heads=row.n_heads,
            head_dim=row.d_model // row.n_heads, ffn=4 * row.d_model, vocab=row.vocab_size, gated=False, norm="layer",
            positions="learned", tied=True,
        )  # fmt: skip
        recipe = recipe_of("llm-foundry").with_changes(
            recompute="full" if row.activation_checkpointing else "none", fp8=row.precision == "amp_fp8"
        )
        sharding = "grad-op" if row.sharding == "SHARD_GRAD_OP" else "fsdp"
        yield Case(
            source="llm_foundry", model=decoder.name, decoder=decoder, recipe=recipe,
            layout=Layout(micro_batch=int(row.micro_batch), sharding=sharding), cluster=_MPT_CLUSTERS[row.gpu],
            gpus=int(row.gpus), batch=int(row.global_batch), seq=int(row.seq), seconds=row.step_s,
            note=Path(str(row.source)).name.split()[0],
        )  # fmt: skip


def vtrain(data: Path) -> Iterator[Case]:
    """vtrain: GPT under Megatron-LM of 2023, gradients reduced after backward."""
    for row in read_table(data / "vtrain" / "ground_truth.csv").itertuples():
        name = f"GPT {row.hidden_size} × {row.layers}"
        decoder = rk.Decoder(
            name=name, layers=row.layers, hidden=row.hidden_size, heads=row.attention_heads,
            kv_heads=row.attention_heads, head_dim=row.hidden_size // row.attention_heads, ffn=4 * row.hidden_size,
            vocab=51200, gated=False, norm="layer", bias=True, positions="learned", tied=True,
        )  # fmt: skip
        layout = Layout(
            tensor=row.tensor_parallelism, pipeline=row.pipeline_parallelism, micro_batch=row.micro_batch,
            sharding="ddp", overlap=False,
        )  # fmt: skip
        yield Case(
            source="vtrain", model=name, decoder=decoder, recipe=recipe_of("megatron-2023"), layout=layout,
            cluster="a100-x8-hdr", gpus=row.gpus, batch=row.global_batch, seq=row.sequence_length,
            seconds=row.iteration_time_ms / 1e3, note=row.set,
        )  # fmt: skip


# --- Megatron-LM's functional tests ----------------------------------------------------------------------------

#: Arguments of what a Decoder does not describe, or of other programs.
_OTHER = (
    "multi-latent-attention", "mtp-num-layers", "encoder-num-layers", "hybrid-override-pattern", "is-hybrid-model",
    "spec", "fp8-param-gather", "cuda-graph-impl", "enable-cuda-graph", "external-cuda-graph", "rl-prompts-per-eval",
    "perform-rl-step", "num-experts-and-dense", "experimental-attention-variant", "optimizer-cpu-offload",
    "use-torch-fsdp2", "use-megatron-fsdp", "use-custom-fsdp", "cpu-offloading", "fine-grained-activation-offloading",
    "retro-num-neighbors", "heterogeneous-layers-config-path", "bert-no-binary-head", "img-h", "first-last-layers-bf16",
    "defer-embedding-wgrad-compute", "decoder-first-pipeline-num-layers", "decoder-last-pipeline-num-layers",
)  # fmt: skip


def megatron(data: Path) -> Iterator[Case]:
    """megatron_lm: GPT and mixtures of experts that can be described. Time is judged on release rows alone. Their
    number of GPUs is not stated: it is that whose predicted peak is nearest, and those peaks judge nothing. Where the
    router is not made to balance, the fullest GPU's experts have 1.25 times the mean, the room of Switch Transformers.
    That was chosen with these rows in view (15 to 27 % too fast without it), so they do not judge it. Rows above 85 %
    of the GPUs' peak are of other GPUs than they say. The peak is that of the last rank, which writes Megatron's log.
    """
    table = read_table(data / "megatron_lm" / "golden.parquet")
    table = table[table.model.isin(["gpt", "moe", "mixtral"])]
    table = table.drop_duplicates(["case", "iteration_s", "peak_allocated_bytes"])
    for row in table.itertuples():
        args = json.loads(row.args)
        if any(args.get(key) for key in _OTHER) or "--" in str(row.case) or args.get("num-layers") is None:
            continue
        if args.get("optimizer", "adam") != "adam":
            continue
        try:
            yield _megatron(row, args)
        except (RooflinekitError, KeyError, TypeError):
            continue


def _megatron(row: Any, args: Mapping[str, Any]) -> Case:
    tensor, pipeline = int(args.get("tensor-model-parallel-size", 1)), int(args.get("pipeline-model-parallel-size", 1))
    context, expert = int(args.get("context-parallel-size", 1)), int(args.get("expert-model-parallel-size", 1))
    virtual = args.get("num-layers-per-virtual-pipeline-stage")
    layers = int(args["num-layers"])
    chunks = layers // pipeline // int(virtual) if virtual else int(args.get("num-virtual-stages-per-pipeline-rank", 1))
    release = row.test_type == "release"
    batch, micro = int(args["global-batch-size"]), int(args["micro-batch-size"])
    worlds = [int(one) for one in str(row.world_sizes_of_recipe or "").replace(",", " ").split()]
    gpus = worlds[0] if worlds else 8
    decoder = _decoder(args, str(row.model), tensor)
    shared = bool(args.get("use-distributed-optimizer"))
    layout = Layout(
        tensor=tensor, sequence=bool(args.get("sequence-parallel")), context=context, pipeline=pipeline,
        chunks=chunks, expert=expert, imbalance=_imbalance(args, expert), micro_batch=micro,
        expert_tensor=int(args.get("expert-tensor-parallel-size", tensor if args.get("num-experts") else 1)),
        sharding="zero-1" if shared else "ddp", overlap=bool(args.get("overlap-grad-reduce")),
        instances=int(args.get("num-distributed-optimizer-instances") or 1) if shared else 1,
    )  # fmt: skip
    hopper = "h100" in str(row.platform)
    return Case(
        source="megatron_lm", model=f"{row.model} {layers} × {args['hidden-size']}", decoder=decoder,
        recipe=_recipe(args, str(row.platform)), layout=layout,
        cluster="h100-x8-cluster" if hopper else "a100-x8-hdr", gpus=0 if release else gpus, batch=batch,
        seq=int(args["seq-length"]), seconds=row.iteration_s,
        peak_bytes=float(row.peak_allocated_bytes or 0), peak_stage=-1,
        note=("release: " if release else "") + str(row.case),
    )  # fmt: skip


def _imbalance(args: Mapping[str, Any], expert: int) -> float:
    """Tokens of the fullest GPU's experts over the mean: of tests, whose numbers are random, none is known."""
    trained = args.get("save-interval") is not None and args.get("moe-router-load-balancing-type") == "aux_loss"
    return 1.25 if trained and expert > 1 and not args.get("moe-router-force-load-balancing") else 1.0


def _decoder(args: Mapping[str, Any], name: str, tensor: int) -> rk.Decoder:
    hidden, heads = int(args["hidden-size"]), int(args["num-attention-heads"])
    grouped = int(args.get("num-query-groups", heads)) if args.get("group-query-attention") else heads
    rotary = args.get("position-embedding-type") == "rope"
    vocab = 50257  # GPT-2's
    tokenizer = str(args.get("tokenizer-model", args.get("tokenizer-type", "")))
    if "Llama2" in str(args.get("tokenizer-type", "")):
        vocab = 32000
    elif "256k" in tokenizer:
        vocab = 256000
    elif args.get("vocab-size"):
        vocab = int(args["vocab-size"])
    whole = tensor * int(args.get("make-vocab-size-divisible-by") or 128)
    vocab = -(-vocab // whole) * whole  # as Megatron fills it up
    experts = int(args.get("num-experts") or 0)
    ffn = int(args.get("ffn-hidden-size") or 4 * hidden)
    return rk.Decoder(
        name=name, layers=int(args["num-layers"]), hidden=hidden, heads=heads, kv_heads=grouped,
        head_dim=int(args.get("kv-channels") or hidden // heads), vocab=vocab,
        ffn=int(args.get("moe-ffn-hidden-size") or ffn) if experts else ffn, gated=bool(args.get("swiglu")),
        experts=experts, experts_per_token=int(args.get("moe-router-topk", 2)) if experts else 0,
        shared_ffn=int(args.get("moe-shared-expert-intermediate-size") or 0) if experts else 0,
        tied=not args.get("untie-embeddings-and-output-weights"), bias=not args.get("disable-bias-linear"),
        norm="rms" if args.get("normalization") == "RMSNorm" else "layer",
        positions="rotary" if rotary else "none" if args.get("position-embedding-type") == "none" else "learned",
        max_positions=int(args.get("max-position-embeddings") or 0),
    )  # fmt: skip


def _recipe(args: Mapping[str, Any], platform: str) -> Recipe:
    recompute = {"selective": "selective", "full": "full"}.get(str(args.get("recompute-granularity")), "none")
    if args.get("recompute-activations"):
        recompute = "selective"
    # Transformer Engine of the older collection (platform "dgxa100") has no flash attention where steps are to be
    # deterministic: those rows have, to the byte, the peaks of rows that ask for unfused attention. Of a context group
    # it has no other than flash attention, asked for or not (attention.py, get_attention_backend).
    older = platform == "dgxa100" and bool(args.get("deterministic-mode"))
    parted = int(args.get("context-parallel-size", 1)) > 1
    unfused = older or args.get("attention-backend") == "unfused" or args.get("transformer-impl") == "local"
    unfused = unfused and not parted
    half = args.get("fp16") or args.get("bf16")
    return recipe_of("megatron").with_changes(
        attention="unfused" if unfused else "flash", recompute=recompute, fp8=bool(args.get("fp8-format")),
        dropout=float(args.get("hidden-dropout", 0.1)) > 0,
        gradient_fusion=not args.get("no-gradient-accumulation-fusion"),
        deterministic=bool(args.get("deterministic-mode")), turned=not args.get("no-rope-fusion"),
        dtype=DType.FLOAT16 if args.get("fp16") else DType.BFLOAT16 if half else DType.FLOAT32,
        main_gradients=bool(half), master=bool(half),
    )  # fmt: skip


# --- Megatron Bridge -------------------------------------------------------------------------------------------

_LLAMA = {"head_dim": 128, "kv_heads": 8, "gated": True, "vocab": 128256}
#: Sizes that the models' own config.json files state; those of other kinds of layers are left out.
BRIDGE = {
    "LLAMA3_8B": {**_LLAMA, "layers": 32, "hidden": 4096, "heads": 32, "ffn": 14336},
    "LLAMA3_70B": {**_LLAMA, "layers": 80, "hidden": 8192, "heads": 64, "ffn": 28672},
    "LLAMA3.1_405B": {**_LLAMA, "layers": 126, "hidden": 16384, "heads": 128, "ffn": 53248},
    "Qwen3_30B_a3B": {
        "layers": 48, "hidden": 2048, "heads": 32, "kv_heads": 4, "head_dim": 128, "ffn": 768, "experts": 128,
        "experts_per_token": 8, "qk_norm": True, "vocab": 151936,
    },
    "Qwen3_235B_a22B": {
        "layers": 94, "hidden": 4096, "heads": 64, "kv_heads": 4, "head_dim": 128, "ffn": 1536, "experts": 128,
        "experts_per_token": 8, "qk_norm": True, "vocab": 151936,
    },
    "GPT OSS 120B": {
        "layers": 36, "hidden": 2880, "heads": 64, "kv_heads": 8, "head_dim": 64, "ffn": 2880, "experts": 128,
        "experts_per_token": 4, "window": 128, "windowed_layers": 18, "vocab": 201088,
    },
}  # fmt: skip


def bridge(data: Path) -> Iterator[Case]:
    """megatron_bridge: pre-training of models that a Decoder describes. GPT OSS has a learned number in its softmax, so
    Megatron's own attention runs, with scores in memory, which are assumed to be computed again in backward."""
    table = read_table(data / "megatron_bridge" / "megatron_bridge.csv")
    table = table[table.phase.str.startswith("Pre-Training")]
    for row in table.itertuples():
        name = str(row.model).partition(" (")[0]
        if name not in BRIDGE:
            continue
        sizes = dict(BRIDGE[name])
        decoder = rk.Decoder(name=name, **sizes)
        pipeline = int(row.pp)
        chunks = int(row.vp) if row.vp == row.vp and pipeline > 1 else 1
        expert = int(row.ep) if row.ep == row.ep and decoder.experts else 1
        word = str(row.precision)
        own = {"attention": "unfused", "recompute": "selective"} if "OSS" in name else {}
        recipe = recipe_of("nemo").with_changes(fp8="FP8" in word or "FP4" in word or word == "nan", **own)
        fsdp = row.fsdp == row.fsdp and row.fsdp > 1
        layout = Layout(
            tensor=int(row.tp), sequence=int(row.tp) > 1, context=int(row.cp), pipeline=pipeline, chunks=chunks,
            expert=expert, micro_batch=int(row.micro_batch), sharding="fsdp" if fsdp else "zero-1",
        )  # fmt: skip
        yield Case(
            source="megatron_bridge", model=name, decoder=decoder, recipe=recipe, layout=layout,
            cluster="h100-x8-cluster" if "H100" in row.system else "b200-x8-cluster", gpus=int(row.gpus),
            batch=int(row.global_batch), seq=int(row.seq), seconds=row.step_s, note=f"{row.system} {word}",
        )  # fmt: skip


# --- MLPerf ----------------------------------------------------------------------------------------------------

_GPT3 = {
    "layers": 96, "hidden": 12288, "heads": 96, "kv_heads": 96, "head_dim": 128, "ffn": 4 * 12288, "vocab": 51200,
    "gated": False, "norm": "layer", "bias": True, "positions": "learned", "tied": True,
}  # fmt: skip
#: Sequence, numbers of a decoder, and virtual stages, which the names of configurations do not hold: NVIDIA's code.
_MLPERF = {"gpt3": (2048, _GPT3, 6), "llama31_405b": (8192, BRIDGE["LLAMA3.1_405B"], 8)}
_MLPERF_CLUSTERS = {
    "NVIDIA H100-SXM5-80GB": "h100-x8-cluster", "NVIDIA Blackwell GPU (B200-SXM-180GB)": "b200-x8-cluster",
    "NVIDIA Blackwell GPU (GB200)": "gb200-nvl72",
}  # fmt: skip
#: "32x8x256x4x8_mbs2": nodes, GPUs of each, sequences of a copy, tensor group, stages, micro-batch; with words, also a
#: context group.
_MLPERF_CONFIG = re.compile(
    r"_\d+x\d+x\d+x(?:tp)?(?P<tensor>\d+)(?:x|pp)(?P<pipeline>\d+)(?:cp(?P<context>\d+))?(?:_mbs(?P<micro>\d+))?"
)


def mlperf(data: Path) -> Iterator[Case]:
    """mlperf_training: GPT-3 and Llama 3.1 405B in 8 bits, where the configuration is stated.

    Peaks that NVIDIA's code logs as GB are GiB: those of Llama 2 70B LoRA by context groups extrapolate to 65.1 without
    activations, and 69.5e9 bytes of frozen 8-bit weights are 64.7 GiB.
    """
    table = read_table(data / "mlperf_training" / "systems.csv")
    for row in table[table.benchmark.isin(list(_MLPERF))].itertuples():
        found = _MLPERF_CONFIG.search(str(row.config))
        if found is None or row.accelerator not in _MLPERF_CLUSTERS:
            continue
        seq, sizes, chunks = _MLPERF[row.benchmark]
        tensor, pipeline, context, micro = (
            int(one or 1) for one in found.group("tensor", "pipeline", "context", "micro")
        )
        gpus, batch = int(row.accelerators), int(row.global_batch)
        seconds = row.step_s if row.step_s == row.step_s else batch * seq / row.throughput_samples_per_s
        if seconds != seconds:
            continue
        layout = Layout(
            tensor=tensor, sequence=tensor > 1, context=context, pipeline=pipeline, chunks=chunks, micro_batch=micro
        )  # fmt: skip
        yield Case(
            source="mlperf_training", model=row.benchmark, decoder=rk.Decoder(name=row.benchmark, **sizes),
            recipe=recipe_of("nemo").with_changes(fp8=True), cluster=_MLPERF_CLUSTERS[row.accelerator], gpus=gpus,
            layout=layout, batch=batch, seq=seq, seconds=float(seconds),
            peak_bytes=2**30 * max(0.0, row.max_memory_gb),
            note=f"{row.submitter} {row.config}",
        )  # fmt: skip


SOURCES = {
    "llm_foundry": mpt,
    "vtrain": vtrain,
    "megatron_lm": megatron,
    "megatron_bridge": bridge,
    "mlperf_training": mlperf,
}
