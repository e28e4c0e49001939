"""What is told of attention that a faster kernel could run: why not, at what cost, and what would change it."""

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import rooflinekit as rk
from rooflinekit.errors import InputError
from rooflinekit.step.report import table_rows
from rooflinekit.units import format_quantity

H100, A100, A10, T4 = "nvidia-h100-sxm5-80gb", "nvidia-a100-sxm4-80gb", "nvidia-a10", "nvidia-t4"


class Attends(nn.Module):
    def __init__(self, dropout: float = 0.0, on: list[SDPBackend] | None = None) -> None:
        super().__init__()
        self.dropout, self.on = dropout, on or [*SDPBackend.__members__.values()][1:]

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        with sdpa_kernel(self.on):
            return nn.functional.scaled_dot_product_attention(q, k, v * torch.ones((), requires_grad=True), mask,
                                                              self.dropout)  # fmt: skip


def step(
    gpu: str, like: str | None = None, dim: int = 128, dtype: str = "bfloat16", mask: bool = False,
    mode: str = "inference", **given: object,
) -> rk.Prediction:  # fmt: skip
    inputs = [rk.Input(4, 16, 2048, dim, dtype=dtype) for _ in range(3)]
    masks = rk.Input(4, 1, 1, 2048, dtype="bool") if mask else None
    return rk.predict(rk.trace(Attends(**given), *inputs, masks, like=like, mode=mode), gpu)  # type: ignore[arg-type]


def told(p: rk.Prediction) -> list[str]:
    return [note for note in p.notes if note.startswith("attention: ")]


def attention_s(p: rk.Prediction) -> float:
    return sum(timing.total_s for timing in p.timings if "attention" in timing.kernel.kind)


@pytest.mark.parametrize(
    ("gpu", "given", "excluded", "why", "ran"),
    [
        (A100, {"mask": True}, "FlashAttention 2", "a mask", "memory-efficient"),
        (A100, {"dtype": "float32"}, "FlashAttention 2", "float32", "memory-efficient"),
        (H100, {"like": "2.8"}, "cuDNN's attention", "PyTorch 2.8", "FlashAttention 2"),
        (H100, {"dropout": 0.1}, "cuDNN's attention", "a dropout of 0.1", "FlashAttention 2"),
        (H100, {"on": [SDPBackend.FLASH_ATTENTION]}, "cuDNN's attention", "the program", "FlashAttention 2"),
        (H100, {"dim": 256}, "cuDNN's attention", "heads of 256 numbers", "FlashAttention 2"),
        (A100, {"dim": 320}, "FlashAttention 2", "heads of 320 numbers", "memory-efficient"),
        (A100, {"like": "2.1"}, "FlashAttention 2", "PyTorch 2.1", "FlashAttention 1"),
        (
            A10,
            {"dim": 224, "mode": "training"},
            "FlashAttention 2",
            "training with heads of 224 numbers on compute capability 8.6",
            "memory-efficient",
        ),
        (T4, {"mask": True, "dtype": "float16"}, "FlashAttention 2", "compute capability 7.5", "memory-efficient"),
    ],
)
def test_why_it_does_not_run(gpu: str, given: dict[str, object], excluded: str, why: str, ran: str) -> None:
    (note,) = told(step(gpu, **given))  # type: ignore[arg-type]
    assert note.startswith(f"attention: {excluded} is excluded by {why}; {ran} runs")


def test_heads_that_are_too_wide_to_train_run_by_flash_without_a_gradient() -> None:
    for mode, ran in (("inference", "FlashAttention 2"), ("training", "memory-efficient")):
        names = {timing.kernel.algorithm.name for timing in step(A10, dim=224, mode=mode).timings
                 if timing.kernel.algorithm.shape == "queries"}  # fmt: skip
        assert names == {ran}  # forward and backward


def test_a_step_by_math_says_what_keeps_the_fused_kernels_from_it() -> None:
    wide, narrow = step(T4), step(T4, dtype="float16")
    first, second = told(wide)
    assert "FlashAttention 2 is excluded by compute capability 7.5; math runs: take a GPU of 8.0" in first
    times = wide.gpu_s / narrow.gpu_s  # but for a multiplication beside it
    assert second.startswith("attention: memory-efficient is excluded by bfloat16; math runs, ")
    assert second.endswith(" times slower: use float16 or float32")
    assert float(second.split("runs, ")[1].split()[0]) == pytest.approx(times, rel=0.05)


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_the_factor_is_that_of_two_steps(mode: str) -> None:
    masked, plain = step(A100, mask=True, mode=mode), step(A100, mode=mode)
    (note,) = told(masked)
    assert not told(plain)
    times = attention_s(masked) / attention_s(plain)
    assert times > 1.5
    assert f"; memory-efficient runs, {times:.1f} times slower: drop the mask or use flex_attention" in note


def test_of_two_faster_kernels_each_has_its_reason() -> None:
    first, second = told(step(H100, "2.8", mask=True))
    assert "cuDNN's attention is excluded by PyTorch 2.8;" in first
    assert "PyTorch 2.11 runs it by itself, this one in sdpa_kernel(SDPBackend.CUDNN_ATTENTION)" in first
    assert "FlashAttention 2 is excluded by a mask;" in second


def test_a_kernel_that_is_asked_for_is_the_one_of_a_program_that_asks() -> None:
    p, asking = step(H100, "2.8"), step(H100, "2.8", on=[SDPBackend.CUDNN_ATTENTION])
    table = p.compare(attention=[None, "cudnn", "flash"])
    assert list(table["attention"]) == ["chosen", "cudnn", "flash"]
    assert list(table["total_s"]) == pytest.approx([p.total_s, asking.total_s, p.total_s])
    assert rk.explain(p, table["prediction"][1]).labels == ("FlashAttention 2", "cuDNN's attention")
    assert "attention" not in p.compare(execution="compiled")


@pytest.mark.parametrize(
    ("word", "on"),
    [("cudnn", SDPBackend.CUDNN_ATTENTION), ("FLASH_ATTENTION", SDPBackend.FLASH_ATTENTION),
     ("memory-efficient", SDPBackend.EFFICIENT_ATTENTION)],
)  # fmt: skip
@pytest.mark.parametrize("mode", ["inference", "training"])
def test_an_execution_that_names_a_kernel_is_a_program_within_sdpa_kernel(word: str, on: SDPBackend, mode: str) -> None:
    plain, asking = (step(H100, "2.8", mode=mode, on=given) for given in (None, [on]))
    named = rk.predict(plain.graph, H100, execution=rk.Execution(attention=word))
    assert attention_s(named) == pytest.approx(attention_s(asking), rel=1e-3)  # flash writes sums for a gradient
    assert named.execution.attention == {SDPBackend.CUDNN_ATTENTION: "cudnn", SDPBackend.FLASH_ATTENTION: "flash"}.get(
        on, "efficient"
    )
    assert not told(named)  # it is what was asked for


def test_what_a_network_switches_off_an_execution_does_not_switch_on() -> None:
    own = step(H100, on=[SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION])
    message = r"expected one of efficient, flash, flash-3, triton; got 'cudnn'; cuDNN's attention is excluded by the "
    with pytest.raises(InputError, match=message + "program: leave it switched on"):
        rk.predict(own.graph, H100, execution=rk.Execution(attention="cudnn"))


def test_compiled_steps_run_written_out_attention_by_the_kernel_that_is_named() -> None:
    def attends(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return (q @ k.transpose(1, 2) / 8).softmax(-1) @ v

    graph = rk.trace(attends, *(rk.Input(8, 512, 64, dtype="float16") for _ in range(3)))
    ran = [
        {timing.kernel.algorithm.name for timing in rk.predict(graph, H100, execution=way).timings}
        for way in (rk.Execution(backend="compiled", attention="flash-3"), rk.Execution(attention="flash-3"))
    ]
    assert "FlashAttention 3" in ran[0]
    assert "FlashAttention 3" not in ran[1]  # eager mode multiplies what is written out


def test_the_terms_of_a_step_say_which_kernel_attention_runs_by() -> None:
    predictions = [step(H100, "2.8"), step(H100), step(H100, dtype="float32"), step("intel-max-1550")]
    rows = dict(table_rows(predictions))
    assert [cell.rpartition(" ")[0].rpartition(" ")[0] for cell in rows["attention by"]] == [
        "FlashAttention 2", "cuDNN's attention", "memory-efficient", ""
    ]  # fmt: skip
    assert "attention by" not in dict(table_rows(predictions[3:]))


def test_words_that_are_no_kernel_are_refused() -> None:
    with pytest.raises(
        InputError, match=r"execution attention: expected flash-1, .*; got 'flesh'; did you mean 'flash'"
    ):
        rk.Execution(attention="flesh")


def test_a_kernel_that_the_step_does_not_take_is_refused() -> None:
    with pytest.raises(
        InputError, match=f"{A100}: expected one of cudnn, efficient, flash, math, triton; got 'flash-3'"
    ):
        step(A100).compare(attention="flash-3")
    with pytest.raises(
        InputError, match="expected one of math; got 'cudnn'; cuDNN's attention is excluded by Intel's GPUs"
    ):
        step("intel-max-1550").compare(attention="cudnn")


def test_explanations_name_the_kernels_of_both() -> None:
    first, second = step(A100), step(H100)
    (said,) = (one for one in rk.explain(first, second).details if one.startswith("Attention"))
    times = [format_quantity(attention_s(p), "s") for p in (first, second)]
    assert said == (
        f"Attention runs by FlashAttention 2 in {A100} ({times[0]}) and by cuDNN's attention in {H100} ({times[1]})."
    )


@pytest.mark.parametrize(("gpu", "itself"), [(H100, True), (A100, False)])
def test_advice_says_what_a_later_release_does_by_itself(gpu: str, itself: bool) -> None:
    (tried,) = (one.what for one in rk.advise(step(gpu, "2.8")).suggestions if one.what.startswith("cuDNN's attention"))
    assert ("PyTorch 2.11 does so by itself" in tried) == itself


def test_nothing_is_told_where_the_fastest_runs() -> None:
    assert not told(step(H100))
    assert not told(step(H100, mask=True))  # which cuDNN takes


class LlamaLayer(nn.Module):
    """Of the sizes of Llama 3 8B; with layer norms, which every release has as a kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(4096) for _ in range(2))
        self.qkv, self.out = nn.Linear(4096, 6144, bias=False), nn.Linear(4096, 4096, bias=False)
        self.gates, self.down = nn.Linear(4096, 28672, bias=False), nn.Linear(14336, 4096, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norms[0](x)).unflatten(-1, (48, 128)).transpose(1, 2).split((32, 8, 8), 1)
        seen = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        gate, up = self.gates(self.norms[1](x)).chunk(2, -1)
        return x + self.down(nn.functional.silu(gate) * up)


def test_training_of_a_llama_differs_by_release_by_its_attention_alone() -> None:
    with torch.device("meta"):
        layer = LlamaLayer()
    graphs = [rk.trace(layer, rk.Input(1, 8192, 4096, dtype="bfloat16"), dtype="bfloat16", mode="training",
                       like=like) for like in ("2.8", "2.12")]  # fmt: skip
    flash, cudnn = (rk.predict(graph, H100) for graph in graphs)
    saved = attention_s(flash) - attention_s(cudnn)
    assert flash.total_s - cudnn.total_s == pytest.approx(saved, rel=0.05)
    # transformers#48163 measured cuDNN's attention 1.7 to 2.3 times as fast in training on an H100; 4.5 products of
    # the forward pass's two, half of them masked, are beyond 370 TFLOP/s by FlashAttention 2 on no Hopper
    flop = 3.5 * 4 * 32 * 128 * 8192**2 / 2
    assert attention_s(flash) > flop / 370e12
    assert 1.4 < attention_s(flash) / attention_s(cudnn) < 2.3
    assert [attention_s(rk.predict(graph, A100)) for graph in graphs] == [attention_s(rk.predict(graphs[0], A100))] * 2
