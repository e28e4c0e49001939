"""What `host_ops` names as calls of PyTorch, timed by the CPU's clock.

The CPU's work is timed on tensors of a few numbers, with nothing in the GPU's queue before and no wait within: few
enough calls that the queue never fills. On a CPU the work on those few numbers is in it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from rooflinekit.calibrate.bench.microbench import Call, UnsupportedError, calls_of
from rooflinekit.calibrate.bench.plan import Case
from rooflinekit.calibrate.bench.samples import repeats

Sample = Callable[[], float]  # seconds of one call, each time anew

_ISSUED = 200  # calls in a sample; a stream holds about a thousand launches
_CHAIN = 50  # ops whose gradients autograd issues in a sample
_REST_S = 0.3  # before a burst: clocks rise again, and power is averaged over less
_BURSTS = 5
_FEW = 16  # numbers a side


@contextlib.contextmanager
def on_threads(count: int | None) -> Iterator[None]:
    """PyTorch computes on so many threads within, None or 0 for as many as before; afterwards all is as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """The hardware, as far as it has to be waited for. `cuda` stands for `torch.cuda`; None on a CPU."""

    device: torch.device
    cuda: Any = None
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.perf_counter

    def wait(self) -> None:
        """Waits until the device has nothing left to do."""
        if self.cuda is not None:
            self.cuda.synchronize()

    def issuing(self, call: Call, calls: int, *, to_its_end: bool = False) -> Sample:
        """Seconds that a call takes the CPU, nothing waited for; or from a call to its end, as the CPU sees it."""

        def sample() -> float:
            self.wait()
            start = self.clock()
            for _ in range(calls):
                call()
            if to_its_end:
                self.wait()
            return (self.clock() - start) / calls

        return sample

    def finishing(self, call: Call, calls: int = 1) -> Sample:
        """Seconds from a call to its end, as the CPU sees it."""
        return self.issuing(call, calls, to_its_end=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """How a case is sampled."""

    sample: Sample
    inner: int = 1  # calls in a sample
    warms_up: bool = True
    samples: int | None = None  # exactly so many; None for as many as the precision takes


def prepare(case: Case, bench: Bench, samples: int) -> Prepared:
    """The case ready to be sampled. Raises UnsupportedError for what the device lacks, and what torch raises."""
    family, _, rest = case.op.partition("_")
    if case.op in ("burst", "sustained"):
        return _rate(case, bench, samples)
    if family == "issue":
        return _issue(rest, bench)
    if case.op == "item":
        number = torch.ones((), device=bench.device)
        return Prepared(sample=bench.finishing(number.item, _ISSUED), inner=_ISSUED)
    if bench.cuda is None:
        raise UnsupportedError(f"{case.op} needs a GPU")
    if case.op == "sync":
        return Prepared(sample=bench.issuing(bench.cuda.synchronize, _ISSUED), inner=_ISSUED)
    if case.op == "launch_stream":
        return Prepared(sample=bench.finishing(_forward("default", bench.device)))
    return _graph(case, bench) if case.op in ("launch_graph", "graph_node") else _transfer(case, bench)


def _issue(name: str, bench: Bench) -> Prepared:
    forward = name.removesuffix("_backward")
    if forward != name:
        once = bench.issuing(_backward(forward, bench.device), 1)
        return Prepared(sample=lambda: once() / _CHAIN, inner=_CHAIN)
    call = _forward(name, bench.device)

    @torch.no_grad()
    def issued() -> None:
        for _ in range(_ISSUED):
            call()

    all_calls = bench.issuing(issued, 1)
    return Prepared(sample=lambda: all_calls() / _ISSUED, inner=_ISSUED)


def _forward(family: str, device: torch.device) -> Call:
    """One op of a family as a model calls it, by its module where it has one."""
    x = torch.randn(_FEW, _FEW, device=device)
    if family == "default":
        return lambda: torch.add(x, x)
    if family == "view":
        return lambda: x.view(-1)
    if family == "optimizer":
        return lambda: torch._foreach_mul_([x], 1.0)
    if family == "attention":
        heads = x[None, None]
        return lambda: functional.scaled_dot_product_attention(heads, heads, heads)
    if family == "convolution":
        convolution, image = nn.Conv2d(_FEW, _FEW, 1, bias=False, device=device), x[None, :, :, None]
        return lambda: convolution(image)
    made: nn.Module = nn.Linear(_FEW, _FEW, device=device) if family == "matmul" else nn.LayerNorm(_FEW, device=device)
    return lambda: made(x)


def _backward(family: str, device: torch.device) -> Call:
    """The gradient of a chain of ops, each of which autograd gives back as one."""
    shape = (1, _FEW, _FEW, 1) if family == "convolution" else (_FEW, _FEW)
    x = torch.randn(shape, device=device, requires_grad=True)
    weight = torch.randn(_FEW, _FEW, device=device) / _FEW
    kernel = weight[:, :, None, None]
    step: Callable[[torch.Tensor], torch.Tensor] = {
        "default": torch.relu,
        "matmul": lambda y: torch.mm(y, weight),
        "convolution": lambda y: functional.conv2d(y, kernel),
        "normalization": lambda y: functional.layer_norm(y, (_FEW,)),
    }[family]
    y = x
    for _ in range(_CHAIN):
        y = step(y)
    gradient = torch.ones_like(y)
    return lambda: torch.autograd.grad(y, x, gradient, retain_graph=True)


def _graph(case: Case, bench: Bench) -> Prepared:
    call, nodes, cuda = _forward("default", bench.device), case.sizes["nodes"], bench.cuda
    call()
    bench.wait()
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        for _ in range(nodes):
            call()
    if case.op == "launch_graph":
        return Prepared(sample=bench.issuing(graph.replay, 1))
    return Prepared(sample=between_events(cuda, graph.replay, nodes), inner=nodes)


def between_events(cuda: Any, call: Call, calls: int = 1) -> Sample:
    """One run between two events, and a wait for it; the seconds are those of each of its `calls`."""
    start, end = (cuda.Event(enable_timing=True) for _ in range(2))

    def sample() -> float:
        start.record()
        call()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3 / calls

    return sample


def _transfer(case: Case, bench: Bench) -> Prepared:
    way, _, memory = case.op.partition("_")
    pinned, size = memory == "pinned", case.sizes["bytes"]
    host = torch.randint(255, (size,), dtype=torch.uint8)
    host = host.pin_memory() if pinned and bench.device.type == "cuda" else host
    there = torch.empty(size, dtype=torch.uint8, device=bench.device)
    target, source = (there, host) if way == "h2d" else (host, there)
    return Prepared(sample=bench.finishing(lambda: target.copy_(source, non_blocking=pinned)))


def _rate(case: Case, bench: Bench, samples: int) -> Prepared:
    """The rate of one large product, in blocks: a few after a rest each, or one after another until time is over."""
    product = Case(op="mm", dtype=case.dtype, sizes={name: case.sizes[name] for name in "mnk"}, threads=case.threads)
    (call,) = calls_of(product, bench.device, 0).calls
    once = bench.finishing(call)
    once()
    total_s, burst = case.sizes["milliseconds"] / 1e3, case.op == "burst"
    inner = repeats(total_s if burst else total_s / samples, once())
    block = bench.finishing(call, inner)

    def rested() -> float:
        bench.sleep(_REST_S)
        return block()

    return Prepared(
        sample=rested if burst else block, inner=inner, warms_up=False, samples=_BURSTS if burst else samples
    )
