"""The command that starts an engine with the settings that were predicted."""

from __future__ import annotations

import json
from collections.abc import Mapping

from rooflinekit.serving.settings import Disaggregation, Engine, Release, release_of

Parts = tuple[int, int, int]  # tp, ep, dp

_FIRST_ASYNC = (0, 10)  # of vLLM: `--async-scheduling`
#: The first version of each engine with kernels for a format, as remembered; others are as old as the rows.
_FORMATS_SINCE: Mapping[str, Mapping[str, tuple[int, ...]]] = {
    "vllm": {"fp8-block": (0, 7), "nvfp4": (0, 8), "mxfp4": (0, 10)},
    "sglang": {"fp8-block": (0, 4), "nvfp4": (0, 4), "mxfp4": (0, 5)},
    "tensorrt-llm": {"fp8-block": (0, 17), "nvfp4": (0, 17), "mxfp4": (1, 0)},
}

#: The first version of each that hands the cache of prompts to another engine, as remembered: vLLM by NIXL's connector.
_APART_SINCE: Mapping[str, tuple[int, ...]] = {"vllm": (0, 9), "sglang": (0, 4, 6), "tensorrt-llm": (1, 0)}


def launch_lines(
    engine: Engine,
    model: str,
    weights: str,
    kv: str,
    parts: Parts,
    apart: Disaggregation | None = None,
) -> list[str]:
    """The command as a line, or why there is none; nothing where no engine was chosen by name. parts: tp, ep, dp.

    With `apart` one for each kind of engine. The share of the memory is left at the engine's own default, which each
    counts in its own way.
    """
    if engine.release is None:
        return []
    release = release_of(engine.release)
    missing = _lacking(engine, release)
    if release.numbers < _FORMATS_SINCE[release.name].get(weights, ()):
        missing = f"kernels for weights in {weights}"
    if apart and release.numbers < _APART_SINCE[release.name]:
        missing = "engines apart for prompts and answers"
    if missing:
        return [f"no command starts it: {release.name} {release.version} has no {missing}"]
    command = {"vllm": _vllm, "sglang": _sglang, "tensorrt-llm": _tensorrt_llm}[release.name]
    draft = engine.speculation.draft if engine.speculation else None
    beside = [f"a checkpoint with weights in {weights}"]
    beside += ["its draft" if draft else "", "its adapters" if engine.adapters else ""]
    lines = []
    for role, start, of_role in _roles(parts, apart):
        words = command(engine, release, kv, of_role, role)
        if weights == "fp8-dynamic" and release.name != "tensorrt-llm":
            words.append("--quantization fp8")
        lines.append(f"{start}: {' '.join(words).replace('MODEL', model)}  # {', '.join(filter(None, beside))}")
    return lines


def _roles(parts: Parts, apart: Disaggregation | None) -> list[tuple[str, str, Parts]]:
    """Of each kind of engine: its role, how many are started, and the GPUs that share each."""
    if apart is None:
        return [("", "start", parts)]
    reading = parts if apart.prefill_tp in (None, parts[0] * parts[2]) else (apart.prefill_tp or 1, 1, 1)
    counts = ("prefill", apart.prefill, "prompts", reading), ("decode", apart.decode, "answers", parts)
    return [(role, f"start {count} for {what}", of_role) for role, count, what, of_role in counts]


def release_text(engine: Engine) -> str:
    """What stands behind the formats where the engine was chosen by name."""
    return "" if engine.release is None else f", engine {release_of(engine.release)}"


def _lacking(engine: Engine, release: Release) -> str:
    """What the engine is asked to do that no option of its version does; nothing where there is no such thing."""
    mixed = engine.policy == "mixed"
    if engine.sampling == "sorted" and release.name != "vllm":
        return "sampling that sorts all logits"
    if release.name == "vllm":
        v1 = release.numbers >= (0, 8)
        if v1 and not (mixed and engine.chunks):
            return "steps of prompts alone, or of whole ones"
        if not v1 and mixed is not engine.chunks:
            return "prompts cut in steps of their own, or whole ones beside answers"
        if engine.host == "overlapped" and release.numbers < _FIRST_ASYNC:
            return "scheduling of steps ahead"
    elif release.name == "sglang":
        if mixed and not engine.chunks:
            return "whole prompts beside answers"
    elif release.numbers < (1, 0):
        return "server without an engine that trtllm-build made before"
    elif not mixed:
        return "steps of prompts alone"
    return ""


def _said(value: object) -> str:
    """JSON as a word of a shell; nothing of nothing."""
    return f"'{json.dumps(value)}'" if value else ""


def _options(values: Mapping[str, object]) -> list[str]:
    """Options with what they are set to: a word alone for True, nothing for what is false, 0 or None."""
    return [name if value is True else f"{name} {value}" for name, value in values.items() if value]


def _vllm(engine: Engine, release: Release, kv: str, parts: Parts, role: str) -> list[str]:
    tp, ep, dp = parts
    proposed, lora = engine.speculation, engine.adapters
    draft = proposed.draft if proposed else None
    before_v1, other_host = release.numbers < (0, 8), engine.host != release.settings.get("host", "overlapped")
    return ["vllm serve MODEL", *_options({
        "--tensor-parallel-size": tp > 1 and tp, "--data-parallel-size": dp > 1 and dp,
        "--enable-expert-parallel": ep > 1, "--max-num-batched-tokens": engine.step_tokens,
        "--enable-chunked-prefill": before_v1 and engine.chunks,
        "--max-model-len": before_v1 and not engine.chunks and engine.step_tokens,
        "--max-num-seqs": engine.sequences,
        "--async-scheduling": other_host and engine.host == "overlapped",
        "--no-async-scheduling": other_host and engine.host != "overlapped",
        "--kv-cache-dtype": kv == "fp8" and kv, "--enforce-eager": engine.graph_sizes == (),
        "--speculative-config": _said(proposed and {
            **({"method": "ngram", "prompt_lookup_max": 4} if draft is None else {"model": draft.name}),
            "num_speculative_tokens": proposed.tokens,
        }),
        "--kv-transfer-config": _said(role and {"kv_connector": "NixlConnector", "kv_role": "kv_both"}),
        "--enable-lora": lora and f"--max-loras {lora.number} --max-lora-rank {lora.rank}",
        "--generation-config": not before_v1 and engine.sampling == "greedy" and "vllm",
        "--override-generation-config": _said(engine.sampling == "sorted" and {"top_p": 0.9}),
    })]  # fmt: skip


def _sglang(engine: Engine, release: Release, kv: str, parts: Parts, role: str) -> list[str]:
    tp, ep, dp = parts
    proposed, lora = engine.speculation, engine.adapters
    draft = proposed.draft if proposed else None
    overlaps_by_itself = release.numbers >= (0, 4)
    return ["python -m sglang.launch_server --model-path MODEL", *_options({
        "--tp-size": tp * dp > 1 and tp * dp, "--dp-size": dp > 1 and f"{dp} --enable-dp-attention",
        "--ep-size": ep > 1 and ep, "--chunked-prefill-size": engine.step_tokens if engine.chunks else -1,
        "--max-prefill-tokens": not engine.chunks and engine.step_tokens,
        "--enable-mixed-chunk": engine.policy == "mixed",
        "--disable-overlap-schedule": overlaps_by_itself and engine.host == "serial",
        "--enable-overlap-schedule": not overlaps_by_itself and engine.host == "overlapped",
        "--max-running-requests": engine.sequences, "--kv-cache-dtype": kv == "fp8" and "fp8_e4m3",
        "--disable-cuda-graph": engine.graph_sizes == (),
        "--speculative-algorithm": proposed and ((draft is None and "NGRAM") or "STANDALONE"),
        "--speculative-draft-model-path": draft and draft.name,
        "--speculative-num-draft-tokens": proposed and proposed.tokens + 1,
        "--disaggregation-mode": role,
        "--enable-lora": lora and f"--max-loras-per-batch {lora.number} --max-lora-rank {lora.rank}",
    })]  # fmt: skip


def _tensorrt_llm(engine: Engine, release: Release, kv: str, parts: Parts, role: str) -> list[str]:
    tp, ep, dp = parts
    proposed, lora = engine.speculation, engine.adapters
    words = ["trtllm-serve MODEL --backend pytorch", *_options({
        "--tp_size": tp * dp > 1 and tp * dp, "--ep_size": ep > 1 and ep, "--max_num_tokens": engine.step_tokens,
        "--max_batch_size": engine.sequences,
    })]  # fmt: skip
    options = {
        "enable_chunked_prefill": engine.chunks, "enable_attention_dp": dp > 1,
        # engines for prompts start without it alone
        "disable_overlap_scheduler": engine.host == "serial" or role == "prefill",
        "cache_transceiver_config": role and {"backend": "DEFAULT"}, "batch_wait_timeout_iters": engine.wait_steps,
        "cuda_graph_config": None if engine.graph_sizes == () else False,
        "kv_cache_config": {"dtype": "fp8"} if kv == "fp8" else {},
        "speculative_config": proposed and {
            "decoding_type": "NGram" if proposed.draft is None else "DraftTarget", "max_draft_len": proposed.tokens,
            **({} if proposed.draft is None else {"speculative_model_dir": proposed.draft.name}),
        },
        "lora_config": lora and {"max_lora_rank": lora.rank, "max_loras": lora.number},
        "scheduler_config": {"capacity_scheduler_policy": "MAX_UTILIZATION"} if engine.reserve == "grow" else {},
    }  # fmt: skip
    told = {name: value for name, value in options.items() if value or (value is None and name == "cuda_graph_config")}
    # JSON is YAML too
    return [*words, *([f"--extra_llm_api_options <(echo '{json.dumps(told)}')"] if told else [])]
