"""What ops need beside their tensors."""

from dataclasses import replace

import torch
from torch import nn

import rooflinekit as rk
from rooflinekit.hardware.device import Device
from rooflinekit.ir.op import DType, Role, TensorSpec
from rooflinekit.kernels.eager import issues_of
from rooflinekit.step.entry import issues_for
from rooflinekit.step.memory import USABLE_SHARE, Blocks, Life, memory_of


def test_windows_are_written_out_where_a_library_has_no_other_way() -> None:
    # one image of 5·8·8 results, windows of 4·3·3·3 numbers of 2 bytes
    graph = rk.trace(nn.Conv3d(4, 6, 3, padding=1, bias=False), rk.Input(2, 4, 5, 8, 8), dtype="bfloat16")
    single = rk.trace(nn.Conv3d(4, 6, 3, padding=1, bias=False), rk.Input(2, 4, 5, 8, 8))
    amd, nvidia = rk.load_device("amd-mi100"), rk.load_device("nvidia-a100-sxm4-80gb")
    assert memory_of(graph, issues_of(graph), amd).workspace_bytes == 5 * 8 * 8 * 4 * 27 * 2
    assert memory_of(graph, issues_of(graph), nvidia).workspace_bytes == 0
    assert memory_of(single, issues_of(single), amd).workspace_bytes == 0  # an implicit product, in fp32


def test_a_convolution_does_without_a_workspace_where_there_is_no_room() -> None:
    # images of 64 channels and 128·128 pixels in 16 bits: 2 MiB each; image, result, and both with channels last
    graph = rk.trace(nn.Conv2d(64, 64, 3, padding=1, bias=False), rk.Input("batch", 64, 128, 128), dtype="float16")
    at, gpu = graph.at(batch=64), rk.load_device("nvidia-a100-sxm4-80gb")
    issues = issues_for(at, gpu, rk.Execution())
    whole = memory_of(at, issues, gpu)
    assert whole.peak_bytes > 4 * 64 * 2**21
    assert whole.fits
    assert whole.workspaces_fit
    assert whole.note("gpu") == ""

    def on(room: int) -> Device:
        capacity = (room + whole.context_bytes) / USABLE_SHARE
        return gpu.model_copy(update={"dram": gpu.dram.model_copy(update={"capacity": capacity})})

    least = whole.peak_bytes - whole.workspace_bytes
    some, none = (memory_of(at, issues, on(room)) for room in (least + 2**22, least - 2**22))
    assert some.fits
    assert not some.workspaces_fit
    assert "smaller workspaces" in some.note("gpu")
    assert not none.fits
    grid = rk.sweep(graph, gpus=[on(least + 2**22)], batch=[32, 63, 64, 65, 128])
    assert grid["fits"].tolist() == [True, True, True, False, False]


def test_what_is_left_of_a_step_is_given_back_before_the_next() -> None:
    # block 0 stays; 1 is left when the only op ends, 2 ends with it, 3 is its workspace
    lives = [Life(7, 0, 1, "result"), Life(3, 0, 0, "between")]
    blocks = Blocks(standing=(), fixed=[5], lives=lives, temporary=[2], spared=[True])
    one = [1, 2, 3, -4, -3]
    assert blocks.program() == [0, *one]
    assert blocks.program(3) == [0, *one, -2, *one, -2, *one]
    assert blocks.optional == {3}


def test_a_cuda_graph_has_a_pool_of_its_own() -> None:
    # 2 MiB that stand, 3 MiB of the step: eager mode has both in one segment of 20 MiB; a graph is captured once
    mib, life = 2**20, Life(3 * 2**20, 0, 1, "result")
    weight = TensorSpec(name="w", shape=(2 * mib,), dtype=DType.INT8, role=Role.WEIGHT)
    eager = Blocks(standing=(weight,), fixed=[2 * mib, 0], lives=[life], temporary=[0], spared=[False])
    graph = replace(eager, captured=True)
    assert (eager.reserved(), graph.reserved()) == (20 * mib, 40 * mib)
    assert [block for pool in graph.pools(3) for block in pool] == eager.program()
    assert (eager.reserved(20 * mib, 3), graph.reserved(40 * mib, 3), graph.reserved(39 * mib)) == (
        20 * mib,
        40 * mib,
        None,
    )


def test_a_sweep_gives_a_cuda_graph_the_room_of_its_pools() -> None:
    graph, gpu = rk.trace(nn.Linear(1024, 1024), rk.Input("batch", 1024)), rk.load_device("nvidia-l4")
    ways = ["eager", "cuda-graph", "reduce-overhead"]
    uses = {way: rk.predict(graph, gpu, batch=512, execution=way).memory for way in ways}
    eager, captured, compiled = (use.reserved_bytes for use in uses.values())
    assert eager < captured == compiled  # weights, inputs and results lie in one segment, or in two
    capacity = (captured - 2**20 + uses["eager"].context_bytes) / USABLE_SHARE
    small = gpu.model_copy(update={"dram": gpu.dram.model_copy(update={"capacity": capacity})})
    for way in ways:
        table = rk.sweep(graph, gpus=[small], execution=[way], batch=[256, 511, 512])
        assert (
            table["fits"].tolist()[-1]
            == rk.predict(graph, small, batch=512, execution=way).memory.fits
            == (way == "eager")
        )


def _needs(module: nn.Module, device: str = "nvidia-a100-sxm4-80gb", *, mode: str = "training") -> tuple[int, int]:
    """Peak and workspaces of a step on a million numbers, without an optimizer."""
    graph = rk.trace(module, rk.Input(1024, 1024), mode=mode)
    gpu = rk.load_device(device)
    use = memory_of(graph, issues_of(graph, device=gpu), gpu)
    return use.peak_bytes, use.workspace_bytes


def test_threads_of_forward_and_backward_have_a_workspace_each() -> None:
    linear = nn.Linear(1024, 8)
    each = 2 * 4 * 2**20 + 8 * 16 * 2**10  # of cuBLAS: 4 MiB twice, 16 KiB eight times
    assert (_needs(linear, mode="inference")[1], _needs(linear)[1]) == (each, 2 * each)
    assert _needs(linear, "nvidia-b200-sxm-180gb")[1] == 2 * 8 * 4 * 2**20


class Scaled(nn.Module):
    """A softmax, or a square, of what a weight has scaled."""

    def __init__(self, then: str) -> None:
        super().__init__()
        self.weight, self.then = nn.Parameter(torch.ones(1024)), then

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * self.weight
        return y.softmax(-1) if self.then == "softmax" else y.pow(3)


def test_what_a_gradient_makes_on_its_way() -> None:
    mib = 2**20
    # Of 4 MiB each: x, the softmax's result, its gradient, and their product beside the gradient of what it was given.
    assert _needs(Scaled("softmax"))[1] == 4 * mib
    # x, x·w and the result; the square, three times that, and the product with the loss's gradient are there together.
    assert 6 * 4 * mib <= _needs(Scaled("power"))[0] < 6.01 * 4 * mib


class Named(nn.Module):
    """What is made on the way to the result, each under a name of its own, or under one."""

    def __init__(self, *, each: bool) -> None:
        super().__init__()
        self.each = each

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.each:
            return (x * 2 + 1) * 3 - 1
        a = x * 2
        b = a + 1
        c = b * 3
        return c - 1


def test_variables_hold_what_they_name() -> None:
    # The input, and beside it two results at a time, or all four.
    assert [_needs(Named(each=each), mode="inference")[0] for each in (False, True)] == [3 * 2**22, 5 * 2**22]
