"""Compiled steps on several devices: where they are cut, against PyTorch itself and by hand; and laws."""

from collections.abc import Callable, Iterator
from functools import reduce
from itertools import pairwise
from typing import Any

import pytest
import torch
from several import slow_cluster
from torch import nn
from torch._dynamo.backends.distributed import DDPOptimizer

import rooflinekit as rk
from rooflinekit.distributed.replicas import in_graphs
from rooflinekit.distributed.rewriting import BEGIN, gradients_of, is_ours
from rooflinekit.errors import InputError
from rooflinekit.ir.op import Phase, Role
from rooflinekit.step.execution import Execution

HOST = rk.load_host("generic-server")
COMPILED = Execution(backend="compiled")
BUCKETS = rk.DDP(bucket_bytes=100_000, first_bucket_bytes=1000)


class Words(nn.Module):
    """An embedding whose weight is also that of the head, and a norm with a parameter of the root's own."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 16)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0) for _ in range(2))
        self.scale = nn.Parameter(torch.ones(16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.embedding(x)
        for layer in self.layers:
            y = layer(y)
        return nn.functional.linear(y * self.scale, self.embedding.weight)


def convolutional() -> nn.Module:
    layers = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 16, 3), nn.BatchNorm2d(16), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))


def pieces(graph: rk.Graph) -> list[set[str]]:
    """The weights that each forward graph reads."""
    found: list[set[str]] = []
    weights = {spec.memory: spec.name for spec in graph.weights if spec.role is Role.WEIGHT}
    for op in graph.ops:
        if op.phase is Phase.FORWARD:
            if op.kind == BEGIN:
                found.append(set())
            elif not is_ours(op):
                found[-1] |= {weights[spec.memory] for spec in op.inputs if spec.memory in weights}
    return found


def torchs_pieces(model: nn.Module, x: torch.Tensor, first: int, limit: int, half: bool) -> list[set[str]]:
    """What PyTorch's own optimizer of compiled DDP puts into each of its graphs."""
    # its names: L_self_modules_layers_modules_0_modules_norm1_parameters_weight_
    names = {name.replace(".", "_"): name for name, _ in model.named_parameters()}
    optimizer = DDPOptimizer(limit, lambda gm, inputs: gm.forward, first_bucket_cap=first)
    torch._dynamo.reset()
    with torch.autocast("cpu", torch.bfloat16, enabled=half):
        torch.compile(model, backend=optimizer.compile_fn)(x)
    torch._dynamo.reset()
    words = ("L_self_", "L_fn_", "modules_", "parameters_")
    return [
        {names[reduce(lambda text, word: text.replace(word, ""), words, key).rstrip("_")] for key in bucket.params}
        for bucket in optimizer.buckets
    ]


IMAGES = (convolutional, rk.Input(4, 3, 16, 16), torch.zeros(4, 3, 16, 16))
TOKENS = (Words, rk.Input(4, 6, dtype="int64"), torch.zeros(4, 6, dtype=torch.int64))


@pytest.mark.parametrize(
    ("case", "first", "limit", "half"),
    [(IMAGES, 200, 4000, True), (TOKENS, 1, 1, True), (TOKENS, 6000, 6000, False)],
    ids=["convolutions", "each layer", "words"],
)
def test_cuts_are_those_of_torch(
    case: tuple[Callable[[], nn.Module], Any, torch.Tensor], first: int, limit: int, half: bool
) -> None:
    make, given, x = case
    graph = rk.trace(make(), given, mode="training", fixed=True, autocast="bfloat16" if half else None)
    way = rk.DDP(bucket_bytes=limit, first_bucket_bytes=first)
    assert pieces(in_graphs(graph, way, HOST, COMPILED)) == torchs_pieces(make(), x, first, limit, half)


def begun(graph: rk.Graph) -> dict[str, int]:
    ops = [op for op in graph.ops if op.kind == BEGIN]
    return {phase: sum(op.phase == phase for op in ops) for phase in ("forward", "backward")}


def between(graph: rk.Graph) -> Iterator[list[str]]:
    """The modules of each graph's backward kernels."""
    found: list[str] | None = None
    for p in graph.priced:
        if p.op.phase is Phase.BACKWARD and p.op.kind == BEGIN:
            if found is not None:
                yield found
            found = []
        elif found is not None and p.op.phase is Phase.BACKWARD and p.costs:
            found.append(p.op.module)
    yield found or []


def test_backward_is_cut_where_forward_is(blocks: rk.Graph) -> None:
    # From the end: the head, 16640 bytes, is more than 1000; each block, 4·33088 = 132352, more than 100000, and of its
    # two layers the second, 65792, less; what is left is the stem.
    graph = in_graphs(blocks.at(batch=8), BUCKETS, HOST, COMPILED)
    assert begun(graph) == {"forward": 6, "backward": 6}
    paths = [{module.rpartition(".")[0] or module for module in modules if module} for modules in between(graph)]
    assert paths == [{"head"}, {"blocks.3"}, {"blocks.2"}, {"blocks.1"}, {"blocks.0"}, {"stem"}]
    # gradients are there when their graph ends: in six moments, and not in twenty
    assert len({gradient.place for gradient in gradients_of(graph)}) == 6


def test_where_nothing_is_cut(blocks: rk.Graph) -> None:
    graph = blocks.at(batch=8)
    assert in_graphs(graph, rk.DDP(), HOST, Execution()) is graph
    whole = {"forward": 1, "backward": 1}
    assert begun(in_graphs(graph, rk.DDP(), HOST, COMPILED)) == whole  # 562688 bytes are less than 1 MiB
    small = rk.DDP(bucket_bytes=1000, first_bucket_bytes=1000, overlap=False)
    assert begun(in_graphs(graph, small, HOST, COMPILED)) == whole


def test_each_gathered_block_is_a_graph(blocks: rk.Graph) -> None:
    graph = in_graphs(blocks.at(batch=8), rk.FSDP(), HOST, COMPILED)
    # forward: stem, four blocks with a sum behind each, head, loss; backward has no sums of its own
    assert begun(graph) == {"forward": 1 + 4 * 2 + 1 + 1, "backward": 1 + 1 + 4 + 1}


WAYS = [rk.DDP(), BUCKETS, rk.FSDP(stage=2), rk.FSDP(), rk.Mesh(tensor=2)]


def run(graph: rk.Graph, strategy: object, execution: str, cluster: object = "dgx-a100") -> rk.ParallelPrediction:
    return rk.parallel(graph, cluster=cluster, strategy=strategy, gpus=4, batch=32768, execution=execution)


@pytest.mark.parametrize("way", WAYS, ids=["ddp", "buckets", "zero-2", "fsdp", "tensor"])
@pytest.mark.parametrize("execution", ["compiled", "reduce-overhead"])
def test_terms_of_compiled_steps(blocks: rk.Graph, way: object, execution: str) -> None:
    p = run(blocks, way, execution)
    assert sum(p.terms().values()) == pytest.approx(p.slowest.run.end_s)
    assert all(seconds >= 0 for seconds in p.terms().values())
    assert p.hidden_s + p.exposed_s == pytest.approx(p.communication_s)
    # as much is sent as by an eager step
    eager = run(blocks, way, "eager")
    sizes = [sum(m.timing.size_bytes for m in one.messages) for one in (p, eager)]
    assert sizes[0] == sizes[1] > 0


def test_uncut_kernels_are_those_of_one_device(blocks: rk.Graph) -> None:
    """A single bucket: the compiled kernels of one device, and copies of 20 gradients to the bucket and back."""
    own = run(blocks, rk.DDP(), "compiled").shares[0].prediction
    one = rk.predict(blocks, "nvidia-a100-sxm4-80gb", batch=8192, execution="compiled")
    copies = [t for t in own.timings if t.kernel.kind == "aten.copy_"]
    others = [t for t in own.timings if t.kernel.kind != "aten.copy_"]
    assert len(copies) == 40
    assert sum(t.total_s for t in others) == pytest.approx(one.gpu_s, rel=0.01)
    eager = run(blocks, rk.DDP(), "eager").shares[0].prediction
    assert own.bytes < eager.bytes
    # a sum of few columns is two kernels, each with a start of its own, and in eager mode one
    stages = sum("second stage" in timing.kernel.name for timing in own.timings)
    assert own.gpu_s <= eager.gpu_s + stages * one.machine.values["kernel_ramp_cycles"] / one.machine.clock


def test_nothing_fuses_across_a_cut(blocks: rk.Graph) -> None:
    p = run(blocks, BUCKETS, "compiled").shares[0].prediction
    whole = run(blocks, rk.DDP(), "compiled").shares[0].prediction
    kinds = [[t for t in one.timings if t.kernel.kind != "aten.copy_"] for one in (p, whole)]
    assert len(kinds[0]) >= len(kinds[1])
    assert sum(float(t.kernel.cost.bytes) for t in kinds[0]) >= sum(float(t.kernel.cost.bytes) for t in kinds[1])
    assert p.cpu_s > whole.cpu_s  # ten more graphs to enter


def test_buckets_overlap_with_compiled_backward(blocks: rk.Graph) -> None:
    times = {}
    for overlap in (True, False):
        way = rk.DDP(bucket_bytes=100_000, first_bucket_bytes=1000, overlap=overlap)
        p = rk.parallel(blocks, cluster=slow_cluster(2e9), strategy=way, gpus=4, batch=262144, execution="compiled")
        times[overlap] = p.total_s
        assert (p.hidden_s > 0.3 * p.communication_s) is overlap
    assert times[True] < times[False]


@pytest.mark.parametrize("way", WAYS, ids=["ddp", "buckets", "zero-2", "fsdp", "tensor"])
def test_more_bandwidth_is_never_slower(blocks: rk.Graph, way: object) -> None:
    times = [run(blocks, way, "compiled", slow_cluster(rate)).total_s for rate in (1e9, 1e10, 1e11, 1e12)]
    assert all(more <= less * (1 + 1e-12) for less, more in pairwise(times))


def test_accumulated_parts_are_cut_alike(blocks: rk.Graph) -> None:
    twice = rk.Savers(accumulate=2)
    p = rk.parallel(blocks, cluster="dgx-a100", strategy=BUCKETS, gpus=2, batch=64, savers=twice, execution="compiled")
    assert begun(p.shares[0].prediction.graph) == {"forward": 12, "backward": 12}
    sent = sum(m.timing.size_bytes for m in p.messages if m.timing.collective == "all-reduce")
    assert sent == 562688  # with the last part only


def test_what_pytorch_does_not_do(blocks: rk.Graph) -> None:
    for execution in ("compiled", "reduce-overhead", "cuda-graph"):
        with pytest.raises(
            InputError, match=rf"^execution '{execution}': DataParallel makes new copies of all modules"
        ):
            run(blocks, "dp", execution)
    with pytest.raises(InputError, match=r"^execution 'cuda-graph': gloo takes gradients through the host's memory"):
        run(blocks, rk.DDP(backend="gloo"), "cuda-graph")
    assert run(blocks, rk.DDP(backend="gloo"), "compiled").total_s > 0
