"""Calls that compute what their case says, on the CPU; CUDA's events and graphs against a clock that the test moves."""

import functools
import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from played_gpu import Gpu
from records import case
from refusals import refused

from rooflinekit.calibrate.bench import microbench, samples, timers
from rooflinekit.calibrate.bench.microbench import Calls, calls_of
from rooflinekit.calibrate.bench.plan import Case
from rooflinekit.calibrate.bench.timers import CpuTimer, CudaTimer
from rooflinekit.errors import CampaignError

CPU = torch.device("cpu")


def result(op: str, dtype: str = "fp32", **sizes: int) -> Any:
    (call,) = calls_of(case(op, dtype, **sizes), CPU, 0).calls
    return call()


# --- calls ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "sizes", "shape"),
    [
        ("mm", {"m": 3, "n": 4, "k": 5}, (3, 4)),
        ("mm", {"m": 3, "n": 4, "k": 5, "b": 2}, (2, 3, 4)),
        ("linear", {"m": 3, "n": 4, "k": 5}, (3, 4)),
        ("bmm", {"b": 2, "m": 3, "n": 4, "k": 5}, (2, 3, 4)),
        *((op, {"rows": 3, "cols": 4}, (3, 4)) for op in ("add", "mul", "div", "pow", "addu", "mulu", "divu", "powu")),
        *((op, {"rows": 3, "cols": 4}, (3, 4)) for op in ("relu", "gelu", "tanh", "softmax", "layernorm")),
        *((op, {"rows": 3, "cols": 4}, (3,)) for op in ("sum", "amax", "var")),
        ("sum_first", {"rows": 3, "cols": 4}, (4,)),
        ("read", {"rows": 3, "cols": 4}, ()),
        *((op, {"rows": 3, "cols": 4}, (3, 4)) for op in ("write", "copy", "triad", "to_bf16")),
        ("transpose", {"rows": 3, "cols": 4}, (4, 3)),
        *((op, {"rows": 3, "cols": 4, "table": 9}, (3, 4)) for op in ("embedding", "index_select")),
        ("conv_fwd", {"b": 2, "c_in": 6, "c_out": 4, "h": 9, "w": 8, "r": 3, "s": 3, "groups": 2}, (2, 4, 7, 6)),
        # (9 + 2·1 − 3)/2 + 1 = 5 and (8 + 0 − 2)/1 + 1 = 7
        ("conv_fwd", {"b": 2, "c_in": 3, "c_out": 4, "h": 9, "w": 8, "r": 3, "s": 2, "pad_h": 1, "stride_h": 2},
         (2, 4, 5, 7)),
        ("attention", {"b": 2, "s": 3, "t": 7, "heads": 4, "kv_heads": 2, "d": 8, "causal": 1}, (2, 4, 3, 8)),
        ("attention", {"b": 2, "s": 7, "t": 7, "heads": 4, "kv_heads": 4, "d": 8, "causal": 1}, (2, 4, 7, 8)),
        ("attention", {"b": 1, "s": 1, "t": 7, "heads": 4, "kv_heads": 4, "d": 8, "causal": 1}, (1, 4, 1, 8)),
    ],
)  # fmt: skip
def test_results_have_the_sizes_of_the_case(op: str, sizes: dict[str, int], shape: tuple[int, ...]) -> None:
    found = result(op, **sizes)
    assert tuple(found.shape) == shape
    assert found.isfinite().all()


@pytest.mark.parametrize(("c_in", "groups", "each"), [(3, 1, 3), (4, 4, 1)])
def test_gradients_of_a_convolution(c_in: int, groups: int, each: int) -> None:
    sizes = {"b": 2, "c_in": c_in, "c_out": 4, "h": 9, "w": 8, "r": 3, "s": 3, "pad_h": 1, "pad_w": 1, "groups": groups}
    data, nothing, _ = result("conv_bwd_data", **sizes)
    assert (tuple(data.shape), nothing) == ((2, c_in, 9, 8), None)
    nothing, weight, _ = result("conv_bwd_weight", **sizes)
    assert (tuple(weight.shape), nothing) == ((4, each, 3, 3), None)


def test_what_the_streams_compute(monkeypatch: pytest.MonkeyPatch) -> None:
    values = {
        "read": [[[1.0, 2.0]]],
        "copy": [[[0.0, 0.0]], [[1.0, 2.0]]],
        "triad": [[[0.0, 0.0]], [[1.0, 2.0]], [[4.0, 6.0]]],
    }
    # 1 + 2; the second; 1 + 1.5 · 4 = 7 and 2 + 1.5 · 6 = 11
    for op, expected in {"read": 3.0, "copy": [[1.0, 2.0]], "triad": [[7.0, 11.0]]}.items():
        made = iter(values[op])
        monkeypatch.setattr(microbench._Tensors, "__call__", lambda self, *shape, made=made: torch.tensor(next(made)))
        assert result(op, rows=1, cols=2).tolist() == expected


def test_streams_write_to_memory_that_is_there() -> None:
    (call,) = calls_of(case("triad", rows=4, cols=4), CPU, 0).calls
    assert call().data_ptr() == call().data_ptr()  # type: ignore[attr-defined]


def test_a_layout_of_channels_last() -> None:
    sizes = {"b": 2, "c_in": 8, "c_out": 8, "h": 5, "w": 5, "r": 3, "s": 3, "pad_h": 1, "pad_w": 1}
    assert result("conv_fwd", **sizes, channels_last=1).is_contiguous(memory_format=torch.channels_last)
    assert result("conv_fwd", **sizes, channels_last=0).is_contiguous()


@pytest.mark.parametrize("causal", [0, 1])
def test_gradients_of_attention_are_those_of_autograd(causal: int, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    draw = microbench._Tensors.__call__
    monkeypatch.setattr(
        microbench._Tensors, "__call__", lambda self, *shape: made.append(draw(self, *shape)) or made[-1]
    )
    found = result("attention_bwd", b=2, s=6, t=6, heads=3, kv_heads=3, d=8, causal=causal)
    query, gradient, key, value = made
    inputs = [tensor.clone().requires_grad_() for tensor in (query, key, value)]
    torch.nn.functional.scaled_dot_product_attention(*inputs, is_causal=bool(causal)).backward(gradient)
    for ours, theirs in zip(found, inputs, strict=True):
        torch.testing.assert_close(ours, theirs.grad)


@pytest.mark.parametrize("dtype", ["fp16", "fp32"])
def test_gradients_of_attention_are_called_as_a_gpu_has_them(dtype: str) -> None:
    # The operators that CUDA has for half and for single precision, in their shapes alone.
    made = case("attention_bwd", dtype, b=2, s=6, t=8, heads=3, kv_heads=3, d=8)
    (call,) = calls_of(made, torch.device("meta"), 0).calls
    gradients = call()
    assert [tuple(one.shape) for one in gradients[:3]] == [(2, 3, 6, 8), (2, 3, 8, 8), (2, 3, 8, 8)]  # type: ignore[index]


def test_products_of_8_bits_on_a_gpu() -> None:
    (call,) = calls_of(case("mm", "fp8", m=16, n=32, k=64), torch.device("meta"), 0).calls
    found = call()
    assert (tuple(found.shape), found.dtype) == ((16, 32), torch.bfloat16)  # type: ignore[attr-defined]


def test_one_set_that_stays_in_the_cache() -> None:
    warm = calls_of(case("copy", rows=16, cols=64, warm=1), CPU, 64 * 1024)
    # 2 tensors of 16·64·4 bytes, in a cache of 64 KiB: all of it
    assert (len(warm.calls), warm.state) == (1, {"copies": 1, "set_bytes": 8192, "cached": 1.0})
    # 16 copies of it are twice the cache, so that half of them stay
    assert calls_of(case("copy", rows=16, cols=64), CPU, 64 * 1024).state == {
        "copies": 16, "set_bytes": 8192, "cached": 0.5,
    }  # fmt: skip


def test_large_tensors_repeat_a_million_random_numbers() -> None:
    made = microbench._Tensors(dtype=torch.float32, device=CPU)(3, 2**19)
    assert made[0].std() == pytest.approx(1, abs=0.02)  # of half a million: ± 0.001
    assert torch.equal(made[2], made[0])
    assert not torch.equal(made[1], made[0])


def test_the_last_queries_see_the_keys_before_them(monkeypatch: pytest.MonkeyPatch) -> None:
    # Values are 1 at the last key alone: of 3 queries over 7 keys only the last one sees it.
    values = iter([torch.zeros(1, 1, 3, 4), torch.zeros(1, 1, 7, 4), torch.zeros(1, 1, 7, 4)])
    made = []

    def tensor(self: object, *shape: int) -> torch.Tensor:
        made.append(next(values))
        return made[-1]

    monkeypatch.setattr(microbench._Tensors, "__call__", tensor)
    call = microbench._attention(case("attention", b=1, s=3, t=7, heads=1, kv_heads=1, d=4, causal=1), tensor)  # type: ignore[arg-type]
    made[2][..., 6, :] = 1
    assert call()[0, 0, :, 0].tolist() == pytest.approx([0, 0, 1 / 7])  # type: ignore[index]


def test_copies_are_larger_than_the_cache_together() -> None:
    # 2 inputs of 16·64·4 bytes = 8 KiB a copy; twice a cache of 64 KiB takes 16.
    found = calls_of(case("add", rows=16, cols=64), CPU, 64 * 1024)
    assert (found.bytes, len(found.calls)) == (8192, 16)
    assert len(calls_of(case("add", rows=16, cols=64), CPU, 1e9).calls) == 64  # there is an end to it
    counted = itertools.count()
    Calls(calls=tuple(lambda: next(counted) for _ in range(3)), bytes=1).repeated(7)
    assert next(counted) == 7


def test_number_formats() -> None:
    assert result("mm", "bf16", m=2, n=2, k=2).dtype is torch.bfloat16
    assert result("mm", "fp64", m=2, n=2, k=2).dtype is torch.float64


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (case("add", "fp8", rows=1, cols=1), "add in fp8 has no call in PyTorch"),
        (case("mm", "tf32", m=1, n=1, k=1), "tf32 is an arithmetic of GPUs"),
        (case("to_fp32", rows=1, cols=1), "to_fp32 of fp32 casts nothing"),
        (case("attention_bwd", b=1, s=2, t=2, heads=2, kv_heads=1, d=8),
         "attention_bwd needs as many key heads as query heads, and when causal as many keys as queries"),
        (case("nccl_all_reduce", bytes=4), "nccl_all_reduce needs 2 GPUs; PyTorch sees 0"),
        (case("llm_rope", rows=1, cols=1), "llm_rope has no call in PyTorch"),
        (case("attention", b=1, s=1, t=1, heads=1, kv_heads=1, d=1, window=4),
         "attention with a window has no call in PyTorch"),
    ],
)  # fmt: skip
def test_what_has_no_call(made: Case, message: str) -> None:
    found = CpuTimer(0).time(made, turn=1, warmup=1, samples=5, precision=0.1)
    assert (found.status, found.note, found.seconds, found.round) == ("unsupported", message, (), 1)


# --- the CPU ----------------------------------------------------------------------------------------------------------


def test_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timers, "_LONGER", 1000)  # a busy machine ends no case early
    before = torch.get_num_threads()
    made = case("mm", m=256, n=256, k=256, threads=1)
    found = CpuTimer(0).time(made, turn=0, warmup=2, samples=7, precision=1e-9)
    assert (found.status, found.timing, found.case, len(found.seconds)) == ("ok", "backend", made, 7)
    # 34 MFLOP: between 10 TFLOP/s and 10 MFLOP/s
    assert all(3e-6 < seconds < 3 for seconds in found.seconds)
    assert found.state["copies"] == 1
    assert torch.get_num_threads() == before
    environment = CpuTimer(0).environment()
    assert environment["torch"] == torch.__version__
    assert set(environment) == {"torch", "python", "system", "host cpu", "cpus", "vectors", "governor", "threads"}
    assert not any("\n" in text for text in environment.values())


def test_a_case_too_large_for_the_memory() -> None:
    huge = case("add", rows=10**7, cols=10**7)  # 400 TB
    found = CpuTimer(0).time(huge, turn=0, warmup=1, samples=5, precision=0.1)
    assert (found.status, found.seconds) == ("out of memory", ())
    assert "\n" not in found.note


# --- CUDA, played -----------------------------------------------------------------------------------------------------


#: `pynvml` of a GPU at 1980 MHz and 55 °C under its power cap; it does not say how much it draws.
NVML = SimpleNamespace(
    nvmlDeviceGetHandleByPciBusId={"00000000:1b:00.0": "handle"}.__getitem__,
    nvmlSystemGetDriverVersion=lambda: "580.1",
    nvmlDeviceGetClockInfo=lambda handle, kind: {("handle", 1): 1980}[handle, kind],
    nvmlDeviceGetMaxClockInfo=lambda handle, kind: {("handle", 1): 1980}[handle, kind],
    nvmlDeviceGetTemperature=lambda handle, sensor: 55,
    nvmlDeviceGetPowerUsage=Mock(side_effect=RuntimeError("not supported")),
    nvmlDeviceGetCurrentClocksThrottleReasons=lambda handle: 0x1 | 0x4,  # idle once, and the power cap
)


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    def timed(cuda: Gpu, **options: Any) -> Any:
        monkeypatch.setattr(timers, "calls_of", lambda *_: Calls(calls=(cuda.call, cuda.call), bytes=1))
        timer = CudaTimer(0, 0, cuda=cuda, device="cpu", nvml=NVML)
        made = case("add", options.pop("dtype", "fp32"), rows=1, cols=1)
        return timer.time(made, **{"turn": 2, "warmup": 3, "samples": 9, **options})

    return timed


def test_a_graph_is_replayed(play: Callable[..., Any]) -> None:
    cuda = Gpu()
    found = play(cuda, precision=0.01)
    # A call takes 24 µs on its own: 42 make a millisecond. In the graph 2 µs, and a 42nd of the replay's 9 µs.
    assert (found.status, found.timing, found.inner, found.round) == ("ok", "graph", 42, 2)
    assert found.seconds == pytest.approx([2e-6 + 9e-6 / 42] * 5, rel=1e-4)  # five equal ones are enough
    said = {"clock": 1.98e9, "clock_min": 1.98e9, "temperature": 55.0, "throttle": 4.0}
    state = {name: value for name, value in found.state.items() if name not in ("load", "readings")}
    assert state == {**said, "copies": 2, "set_bytes": 1, "cached": 0.0}
    assert found.state["readings"] >= 1
    assert cuda.emptied == 1


def test_what_cannot_be_captured_is_timed_call_by_call(play: Callable[..., Any]) -> None:
    found = play(Gpu(capturable=False), precision=0.01)
    assert (found.status, found.timing, found.inner) == ("ok", "event", 1)
    assert found.seconds == pytest.approx([24e-6] * 5, rel=1e-4)


def test_out_of_memory_is_no_fallback(play: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = Gpu()

    def full(graph: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nGPU 0 has …")

    monkeypatch.setattr(cuda, "graph", full)
    found = play(cuda, precision=0.01)
    assert (found.status, found.seconds) == ("out of memory", ())
    assert found.note == "CUDA out of memory. Tried to allocate 2.00 GiB."


def test_a_device_that_fails_ends_the_run(play: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = Gpu()

    def broken() -> None:
        raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered\nCompile with …")

    monkeypatch.setattr(cuda, "call", broken)
    with refused(
        CampaignError,
        "add fp32 rows=1 cols=1: the device failed: CUDA error: an illegal memory access was encountered; what was "
        "measured before is kept, the same command continues with this case, and --only can leave out its op",
    ):
        play(cuda, precision=0.01)


def test_the_gpu_that_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda, seen = Gpu(), set()
    monkeypatch.setattr(timers, "calls_of", lambda *_: Calls(calls=(lambda: seen.add(cuda.current[-1]),), bytes=1))
    CudaTimer(3, 0, cuda=cuda, device="cpu").time(
        case("add", rows=1, cols=1), turn=0, warmup=1, samples=5, precision=0.1
    )
    assert seen == {3}


@pytest.mark.parametrize("dtype", ["fp32", "tf32"])
def test_tf32_is_on_for_its_own_cases_and_as_before_afterwards(play: Callable[..., Any], dtype: str) -> None:
    seen, before = [], (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32)

    class Watched(Gpu):
        def call(self) -> None:
            seen.append((torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32))
            super().call()

    play(Watched(), precision=0.01, dtype=dtype)
    assert set(seen) == {(dtype == "tf32",) * 2}
    assert (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32) == before


def test_what_is_no_kernel_is_timed_by_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    timer = CudaTimer(0, 0, cuda=Gpu(), device="cpu", nvml=NVML)
    issued = timer.time(case("issue_default"), turn=0, warmup=1, samples=5, precision=0.5)
    assert (issued.status, issued.timing, issued.inner) == ("ok", "host", 200)
    assert "clock" not in issued.state  # asking NVML would hold the CPU up
    sizes = {"m": 8, "n": 8, "k": 8, "milliseconds": 2}
    rate = timer.time(case("sustained", "tf32", **sizes), turn=0, warmup=1, samples=6, precision=0.5)
    assert (rate.status, rate.note) == ("unsupported", "tf32 is an arithmetic of GPUs")  # the played GPU is a CPU
    rate = timer.time(case("sustained", **sizes), turn=0, warmup=1, samples=6, precision=0.5)
    assert (rate.status, rate.timing, len(rate.seconds)) == ("ok", "host", 6)
    assert (rate.state["clock"], rate.state["throttle"]) == (1.98e9, 4)
    assert timer.time(case("nccl_all_reduce", bytes=8), turn=0, warmup=1, samples=5, precision=0.5).note == (
        "nccl_all_reduce needs 2 GPUs; PyTorch sees 1"
    )


def test_a_case_that_lasts_ends_at_five_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    passed = itertools.count()  # a second at each look
    late = functools.partial(samples.collect, clock=lambda: float(next(passed)))
    monkeypatch.setattr(timers, "collect", late)
    growing = itertools.count(1)
    # 20 samples of a millisecond are planned, and eight times as long is allowed, but five there have to be. Growing
    # ones never reach the precision.
    assert len(timers._samples(lambda: float(next(growing)), 20, 1e-9)) == 5


def test_a_graph_holds_every_set(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = Gpu()
    # 24 µs a call: 42 of them make a millisecond; 60 sets are few enough to be in one graph
    for sets, inner in ((2, 42), (60, 60), (5000, 42)):
        monkeypatch.setattr(timers, "calls_of", lambda *_, n=sets: Calls(calls=(cuda.call,) * n, bytes=1))
        timer = CudaTimer(0, 0, cuda=cuda, device="cpu")
        found = timer.time(case("add", rows=1, cols=1), turn=0, warmup=1, samples=5, precision=0.1)
        assert (found.inner, found.timing) == (inner, "graph")


def test_samples_of_a_cpu_go_through_all_sets() -> None:
    seen = []
    calls = Calls(calls=tuple(lambda i=i: seen.append(i) for i in range(3)), bytes=1)
    sample = timers._loop(calls, 2)
    for _ in range(3):
        sample()
    assert seen == [0, 1, 2, 0, 1, 2]


def test_the_environment_of_a_gpu() -> None:
    found = CudaTimer(0, 0, cuda=Gpu(), device="cpu", nvml=NVML).environment()
    assert (found["gpu"], found["driver"], found["clock limit"]) == ("NVIDIA H200", "580.1", "1980 MHz")
    assert found["power limit"] == "unknown"
    host = ("torch", "python", "system", "host cpu", "cpus", "vectors", "governor")
    assert set(found) == {*host, "gpu", "cuda", "cudnn", "driver", "power limit", "clock limit"}
