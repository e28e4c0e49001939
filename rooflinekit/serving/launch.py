"""The command that starts an engine with the settings that were predicted, as its documentation names them."""

from __future__ import annotations

import json

from rooflinekit.serving.releases import Release, release_of
from rooflinekit.serving.settings import Engine

_FIRST_ASYNC = (0, 10)  # of vLLM: `--async-scheduling`


def launch_lines(engine: Engine, model: str, weights: str, kv: str, parts: tuple[int, int, int]) -> list[str]:
    """The command as a line, or why there is none; nothing where no engine was chosen by name. parts: tp, ep, dp.

    The share of the memory is left at the engine's own default, which each counts in its own way.
    """
    if engine.release is None:
        return []
    release = release_of(engine.release)
    missing = _lacking(engine, release)
    if missing:
        return [f"no command starts it: {release.name} {release.version} has no {missing}"]
    words = {"vllm": _vllm, "sglang": _sglang, "tensorrt-llm": _tensorrt_llm}[release.name](engine, release, kv, parts)
    if weights == "fp8-dynamic" and release.name != "tensorrt-llm":
        words.append("--quantization fp8")
    beside = [f"a checkpoint with weights in {weights}"]
    beside += ["its draft" if engine.speculation else "", "its adapters" if engine.adapters else ""]
    return [f"start: {' '.join(words).replace('MODEL', model)}  # {', '.join(filter(None, beside))}"]


def release_text(engine: Engine) -> str:
    """What stands behind the formats where the engine was chosen by name."""
    return "" if engine.release is None else f", engine {release_of(engine.release)}"


def _lacking(engine: Engine, release: Release) -> str:
    """What the engine is asked to do that no option of its version does; nothing where there is no such thing."""
    mixed = engine.policy == "mixed"
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


def _vllm(engine: Engine, release: Release, kv: str, parts: tuple[int, int, int]) -> list[str]:
    tp, ep, dp = parts
    words = ["vllm serve MODEL"]
    words += [f"--tensor-parallel-size {tp}"] if tp > 1 else []
    words += [f"--data-parallel-size {dp}"] if dp > 1 else []
    words += ["--enable-expert-parallel"] if ep > 1 else []
    words.append(f"--max-num-batched-tokens {engine.step_tokens}")
    if release.numbers < (0, 8):
        words.append("--enable-chunked-prefill" if engine.chunks else f"--max-model-len {engine.step_tokens}")
    words += [f"--max-num-seqs {engine.sequences}"] if engine.sequences else []
    if engine.host != release.settings.get("host", "overlapped"):
        words.append("--async-scheduling" if engine.host == "overlapped" else "--no-async-scheduling")
    words += [f"--kv-cache-dtype {kv}"] if kv == "fp8" else []
    return [*words, *(["--enforce-eager"] if engine.graph_sizes == () else [])]


def _sglang(engine: Engine, release: Release, kv: str, parts: tuple[int, int, int]) -> list[str]:
    tp, ep, dp = parts
    words = ["python -m sglang.launch_server --model-path MODEL"]
    words += [f"--tp-size {tp * dp}"] if tp * dp > 1 else []
    words += [f"--dp-size {dp} --enable-dp-attention"] if dp > 1 else []
    words += [f"--ep-size {ep}"] if ep > 1 else []
    words.append(f"--chunked-prefill-size {engine.step_tokens if engine.chunks else -1}")
    words += [f"--max-prefill-tokens {engine.step_tokens}"] if not engine.chunks else []
    words += ["--enable-mixed-chunk"] if engine.policy == "mixed" else []
    if release.numbers >= (0, 4):
        words += ["--disable-overlap-schedule"] if engine.host == "serial" else []
    elif engine.host == "overlapped":
        words.append("--enable-overlap-schedule")
    words += [f"--max-running-requests {engine.sequences}"] if engine.sequences else []
    words += ["--kv-cache-dtype fp8_e4m3"] if kv == "fp8" else []
    return [*words, *(["--disable-cuda-graph"] if engine.graph_sizes == () else [])]


def _tensorrt_llm(engine: Engine, release: Release, kv: str, parts: tuple[int, int, int]) -> list[str]:
    tp, ep, dp = parts
    words = ["trtllm-serve MODEL --backend pytorch"]
    words += [f"--tp_size {tp * dp}"] if tp * dp > 1 else []
    words += [f"--ep_size {ep}"] if ep > 1 else []
    words.append(f"--max_num_tokens {engine.step_tokens}")
    words += [f"--max_batch_size {engine.sequences}"] if engine.sequences else []
    options = {
        "enable_chunked_prefill": engine.chunks, "enable_attention_dp": dp > 1,
        "disable_overlap_scheduler": engine.host == "serial", "batch_wait_timeout_iters": engine.wait_steps,
        "cuda_graph_config": None if engine.graph_sizes == () else False,
        "kv_cache_config": {"dtype": "fp8"} if kv == "fp8" else {},
        "scheduler_config": {"capacity_scheduler_policy": "MAX_UTILIZATION"} if engine.reserve == "grow" else {},
    }  # fmt: skip
    told = {name: value for name, value in options.items() if value is None or value}
    # JSON is YAML too
    return [*words, *([f"--extra_llm_api_options <(echo '{json.dumps(told)}')"] if told else [])]
