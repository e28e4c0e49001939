"""Engines by name and version: their defaults, the command that starts them, and what is said of wrong names."""

from dataclasses import replace
from typing import Any

import pytest

import rooflinekit as rk
from rooflinekit.errors import InputError
from rooflinekit.ir.op import Family
from rooflinekit.serving.launch import launch_lines
from rooflinekit.serving.settings import RELEASES, release_of

GPU = "nvidia-l40s"


@pytest.mark.parametrize(
    ("release", "policy", "host", "chunks"),
    [
        ("vllm:0.6.3", "prefill-first", "serial", False),  # V0
        ("vllm:0.12", "mixed", "serial", True),  # V1
        ("vllm:v0.14.0rc1", "mixed", "overlapped", True),  # schedules a step ahead
        ("sglang:0.3", "prefill-first", "serial", True),
        ("sglang:0.5.6.post2", "prefill-first", "overlapped", True),
        ("tensorrt-llm:1.0.0rc3", "mixed", "overlapped", False),
    ],
)
def test_a_version_chooses_the_scheduler(release: str, policy: str, host: str, chunks: bool) -> None:
    engine = rk.Engine.of(release)
    assert (engine.policy, engine.host, engine.chunks, engine.release) == (policy, host, chunks, release)


@pytest.mark.parametrize("name", RELEASES)
def test_without_a_version_the_newest_known_is_said(name: str) -> None:
    assert release_of(name).settings == release_of(f"{name}:99").settings
    assert "the newest known" in str(release_of(name))
    assert "newest" not in str(release_of(f"{name}:99"))


@pytest.mark.parametrize(
    ("release", "gpu", "kernel"),
    [
        ("vllm:0.12", GPU, "FlashAttention 2"),
        ("vllm", "nvidia-h100-sxm5-80gb", "FlashAttention 3"),
        ("sglang:0.5.14", GPU, "FlashInfer"),
        ("sglang", "nvidia-b200-sxm-180gb", "TensorRT-LLM's attention"),
        ("tensorrt-llm:1.0", GPU, "TensorRT-LLM's attention"),
    ],
)
def test_an_engine_attends_by_its_kernel_and_says_so(release: str, gpu: str, kernel: str) -> None:
    decoder = rk.Decoder.from_config("llama-3.2-1b")
    served = rk.serve(decoder, gpu, batch=1, input=512, output=16, engine=rk.Engine.of(release))
    ran = {one.kernel.algorithm.name for p in (served.prefill, served.decode) for one in p.timings
           if one.kernel.family is Family.ATTENTION}  # fmt: skip
    assert ran == {kernel}
    assert f"\n  attention by {kernel}\n" in str(served)


def test_a_row_holds_from_its_version_on() -> None:
    for rows in RELEASES.values():
        assert [row[0] for row in rows] == sorted(row[0] for row in rows)
    assert release_of("vllm:0.7.99").since == "0.6"
    assert release_of("vllm:0.8").since == release_of("vllm:0.13.9").since == "0.8"
    assert release_of("tensorrt-llm:1").since == "1.0"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("vlm", "engine 'vlm': expected vllm, sglang, tensorrt-llm, as vllm:0.12; did you mean 'vllm'?"),
        ("vllm:", "engine 'vllm:': expected a version behind the colon, such as vllm:0.14"),
        ("sglang:main", "engine 'sglang:main': expected a version behind the colon, such as sglang:0.4"),
        ("vllm:0.2", "engine 'vllm:0.2': known from vllm 0.6 on"),
        ("sglang:0.5.8:3", "engine 'sglang:0.5.8:3': expected a version behind the colon, such as sglang:0.4"),
        (3, "engine: expected a name such as 'vllm:0.12'; got 3"),
    ],
)
def test_other_engines(text: Any, message: str) -> None:
    with pytest.raises(InputError) as error:
        rk.Engine.of(text)
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    ("engine", "parts", "words"),
    [
        (rk.Engine.of("vllm:0.12", step_tokens=2048), (2, 1, 1),
         "vllm serve M --tensor-parallel-size 2 --max-num-batched-tokens 2048 --max-num-seqs 1024"),
        (rk.Engine.of("vllm:0.12", host="overlapped", sequences=8), (1, 1, 1),
         "vllm serve M --max-num-batched-tokens 8192 --max-num-seqs 8 --async-scheduling"),
        (rk.Engine.of("vllm:0.6"), (1, 1, 1),
         "vllm serve M --max-num-batched-tokens 8192 --max-model-len 8192 --max-num-seqs 256"),
        (rk.Engine.of("vllm:0.12", sampling="greedy"), (1, 1, 1),
         "vllm serve M --max-num-batched-tokens 8192 --max-num-seqs 1024 --generation-config vllm"),
        (rk.Engine.of("vllm:0.6", sampling="sorted"), (1, 1, 1),
         "vllm serve M --max-num-batched-tokens 8192 --max-model-len 8192 --max-num-seqs 256 "
         "--override-generation-config '{\"top_p\": 0.9}'"),
        (rk.Engine.of("vllm:0.12", speculation=rk.Speculation(tokens=3, acceptance=0.5)), (1, 1, 1),
         "vllm serve M --max-num-batched-tokens 8192 --max-num-seqs 1024 --speculative-config '{\"method\": "
         "\"ngram\", \"prompt_lookup_max\": 4, \"num_speculative_tokens\": 3}'"),
        (rk.Engine.of("sglang", adapters=rk.Adapters(number=4, rank=8)), (1, 1, 1),
         "python -m sglang.launch_server --model-path M --chunked-prefill-size 8192 --enable-lora "
         "--max-loras-per-batch 4 --max-lora-rank 8"),
        (rk.Engine.of("sglang:0.5.8", policy="mixed", graph_sizes=()), (2, 8, 4),
         "python -m sglang.launch_server --model-path M --tp-size 8 --dp-size 4 --enable-dp-attention --ep-size 8 "
         "--chunked-prefill-size 8192 --enable-mixed-chunk --disable-cuda-graph"),
        (rk.Engine.of("tensorrt-llm", chunks=True), (1, 1, 1),
         "trtllm-serve M --backend pytorch --max_num_tokens 8192 --max_batch_size 2048 --extra_llm_api_options "
         "<(echo '{\"enable_chunked_prefill\": true}')"),
    ],
)  # fmt: skip
def test_the_command_has_the_settings(engine: rk.Engine, parts: tuple[int, int, int], words: str) -> None:
    beside = ", its adapters" if engine.adapters else ""
    told = [f"start: {words}  # a checkpoint with weights in bf16{beside}"]
    assert launch_lines(engine, "M", "bf16", "bf16", parts) == told


@pytest.mark.parametrize(
    ("release", "prompts", "answers"),
    [
        ("vllm:0.12", "vllm serve M --tensor-parallel-size 2 --max-num-batched-tokens 8192 --max-num-seqs 1024 {}",
         "vllm serve M --max-num-batched-tokens 8192 --max-num-seqs 1024 {}"),
        ("sglang:0.5", "python -m sglang.launch_server --model-path M --tp-size 2 --chunked-prefill-size 8192 "
         "--disaggregation-mode prefill", "python -m sglang.launch_server --model-path M --chunked-prefill-size 8192 "
         "--disaggregation-mode decode"),
        ("vllm:0.8", None, None),
    ],
)  # fmt: skip
def test_engines_apart_have_a_command_each(release: str, prompts: str | None, answers: str | None) -> None:
    apart = rk.Disaggregation(prefill=3, decode=2, prefill_tp=2)
    lines = launch_lines(rk.Engine.of(release), "M", "bf16", "bf16", (1, 1, 1), apart)
    if prompts is None or answers is None:
        assert lines == ["no command starts it: vllm 0.8 has no engines apart for prompts and answers"]
        return
    link = '--kv-transfer-config \'{"kv_connector": "NixlConnector", "kv_role": "kv_both"}\''
    beside = "  # a checkpoint with weights in bf16"
    assert lines == [
        f"start 3 for prompts: {prompts.format(link)}{beside}", f"start 2 for answers: {answers.format(link)}{beside}"
    ]  # fmt: skip


def test_kernels_that_a_version_does_not_have() -> None:
    older, newer = (launch_lines(rk.Engine.of(f"vllm:0.{n}"), "M", "mxfp4", "bf16", (1, 1, 1))[0] for n in (9, 10))
    assert older == "no command starts it: vllm 0.9 has no kernels for weights in mxfp4"
    assert newer.startswith("start: vllm serve M ")


def test_an_engine_on_gpus_that_it_does_not_run_on() -> None:
    with pytest.raises(InputError, match=r"engine 'tensorrt-llm:1.0': runs on GPUs of NVIDIA alone; amd-mi300x is of"):
        rk.Engine.of("tensorrt-llm:1.0").on(rk.load_device("amd-mi300x"))


@pytest.mark.parametrize(
    "engine",
    [
        rk.Engine.of("vllm:0.12", policy="prefill-first"), rk.Engine.of("vllm:0.6", chunks=True),
        rk.Engine.of("vllm:0.8", host="overlapped"), rk.Engine.of("sglang", policy="mixed", chunks=False),
        rk.Engine.of("tensorrt-llm:0.9"), rk.Engine.of("tensorrt-llm", policy="prefill-first"),
        rk.Engine.of("sglang", sampling="sorted"),
    ],
)  # fmt: skip
def test_what_no_option_does_has_no_command(engine: rk.Engine) -> None:
    (line,) = launch_lines(engine, "M", "bf16", "bf16", (1, 1, 1))
    assert line.startswith("no command starts it: ")


@pytest.mark.parametrize(
    ("engine", "gpu", "expected"),
    [
        # vllm/engine/arg_utils.py: from 70 GiB on, A100 apart
        (rk.Engine.of("vllm:0.12"), "nvidia-h100-sxm5-80gb", (8192, 1024)),
        (rk.Engine.of("vllm:0.12"), "nvidia-a100-sxm4-80gb", (2048, 256)),
        (rk.Engine.of("vllm"), "nvidia-l4", (2048, 256)),
        (rk.Engine.of("vllm:0.12", step_tokens=8192), "nvidia-l4", (8192, 256)),
        (replace(rk.Engine.of("vllm:0.12"), sequences=64), "nvidia-l4", (2048, 64)),
        (rk.Engine.of("vllm:0.7"), "nvidia-l4", (8192, 256)),
        (rk.Engine(), "nvidia-l4", (8192, None)),
        # python/sglang/srt/server_args.py: 24, 45, 80 and 179 GiB
        (rk.Engine.of("sglang"), "nvidia-rtx-4090", (2048, None)),
        (rk.Engine.of("sglang"), "nvidia-l40s", (4096, None)),
        (rk.Engine.of("sglang"), "nvidia-h100-sxm5-80gb", (8192, None)),
        (rk.Engine.of("sglang"), "nvidia-b200-sxm-180gb", (16384, None)),
        (rk.Engine.of("tensorrt-llm"), "nvidia-l4", (8192, 2048)),
    ],
)
def test_an_engine_sets_itself_by_the_memory_of_its_gpu(engine: rk.Engine, gpu: str, expected: tuple[int, int]) -> None:
    placed = engine.on(rk.load_device(gpu))
    assert (placed.step_tokens, placed.sequences) == expected


@pytest.mark.parametrize(
    ("engine", "gpu", "expected"),
    [
        ("vllm", "nvidia-b200-sxm-180gb", (False, "one-shot")), ("vllm", "nvidia-h100-sxm5-80gb", (True, "nccl")),
        ("tensorrt-llm", "nvidia-b200-sxm-180gb", (True, "one-shot")),
        ("tensorrt-llm:0.11", "nvidia-b200-sxm-180gb", (True, "nccl")),
    ],
)  # fmt: skip
def test_how_an_engine_launches_and_sums_on_blackwell(engine: str, gpu: str, expected: tuple[bool, str]) -> None:
    placed = rk.Engine.of(engine).on(rk.load_device(gpu))
    assert (placed.launches_ahead, placed.sums) == expected


def test_an_answer_says_which_engine_was_meant() -> None:
    options: dict[str, Any] = {"batch": 2, "input": 64, "output": 4}
    decoder = rk.Decoder.from_config("llama-3.2-1b")
    named = rk.serve(decoder, GPU, **options, engine=rk.Engine.of("sglang"))
    assert "cache bf16, engine sglang (the defaults since 0.4, the newest known)\n" in str(named)
    assert named.to_dict()["launch"] == named.launch_lines()
    assert named.launch_lines()[0] in str(named)
    assert all("sglang" in str(one) and "vllm" not in str(one) for one in named.accuracy)
    vllm = rk.serve(decoder, GPU, **options, engine=rk.Engine.of("vllm"))
    plain = rk.serve(decoder, GPU, **options, engine=replace(vllm.engine, release=None))
    assert plain.launch_lines() == []
    assert plain.ttft_s == vllm.ttft_s  # whose attention runs where none is named
