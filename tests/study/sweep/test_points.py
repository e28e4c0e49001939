"""A sweep says what single predictions say, whichever way its points go."""

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import rooflinekit as rk

ALL = ("total_s", "low_s", "high_s", "gpu_s", "cpu_s", "throughput", "energy_j")


class Net(nn.Module):
    """Convolutions with and without Winograd, normalization, softmax over a named size, concatenation."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 32, 3, stride=2, padding=1), nn.BatchNorm2d(32)
        self.second, self.third = nn.Conv2d(32, 32, 3, padding=1), nn.Conv2d(32, 32, 3, padding=1, groups=32)
        self.head = nn.Linear(64, 100)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.first(x)))
        x = torch.cat((torch.relu(self.second(x)), self.third(x)), 1)
        return self.head(x.mean((2, 3))).softmax(-1)


class Attends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mixed = nn.LayerNorm(64), nn.MultiheadAttention(64, 4, batch_first=True)
        self.up, self.down = nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        y = x + self.mixed(y, y, y, need_weights=True)[0]
        return y + self.down(nn.functional.gelu(self.up(y)))


@cache
def _graph(name: str, mode: Any) -> rk.Graph:
    if name == "net":
        return rk.trace(Net(), rk.Input("batch", 3, "height", 64), mode=mode, sizes={"height": 96})
    return rk.trace(Attends(), rk.Input("batch", "seq", 64), mode=mode)


def _as_predicted(graph: rk.Graph, found: Any, **options: Any) -> None:
    for row in found.to_dict("records"):
        p = rk.predict(graph, row["gpu"], **{name: int(row[name]) for name in graph.dims}, **options)
        low, high = p.interval(0.9)
        joules = np.nan if p.energy_j is None else p.energy_j
        exact = [p.total_s, low, high, p.gpu_s, p.cpu_s, row["batch"] / p.total_s, joules]
        assert [row[name] for name in ALL] == pytest.approx(exact, rel=1e-9, nan_ok=True), row
        assert (row["regime"], row["fits"], row["peak_bytes"]) == (p.regime, p.memory.fits, p.memory.peak_bytes), row


# gpus: a tensor core, none (so that Winograd comes into question), and cuBLAS's workspace of 9.0; and a CPU
GPUS = ["nvidia-l4", "p100-pcie", "nvidia-h100-sxm5-80gb"]
WAYS: list[Any] = [
    "eager",
    "compiled",
    "cuda-graph",
    rk.Execution(sync="none"),
    rk.Execution(sync="op"),
    rk.Execution(copy="pageable"),
    rk.Execution(copy="pinned", non_blocking=True, sync="none", loader_rate=5000),
    rk.Execution(backend="reduce-overhead", sync="none"),
]


@pytest.mark.parametrize(
    ("name", "mode", "way"),
    [*(("net", "inference", way) for way in WAYS), ("attends", "inference", WAYS[1]), ("attends", "training", WAYS[0])],
    ids=str,
)
def test_rows_are_single_predictions(name: str, mode: str, way: Any) -> None:
    graph = _graph(name, mode)
    rng = np.random.default_rng(7)
    # 1 to tens of thousands: layouts, fusions, splits, who waits for whom and what fits all change on the way
    sizes = {n: sorted({1, *(int(s) for s in np.exp(rng.uniform(0, 9 if n == "batch" else 5, 5)))}) for n in graph.dims}
    if "height" in sizes:
        sizes["height"] = [32, 226]
    found = rk.sweep(graph, gpus=GPUS, execution=way, **sizes)
    assert len(found) == 3 * np.prod([len(values) for values in sizes.values()])
    _as_predicted(graph, found.sample(6, random_state=3), execution=way)


def test_points_where_two_shapes_become_one() -> None:
    # Products [batch, 64]·[64, 32] and [32, 64]·[64, batch]: at batch 32 both are [32, 64]·[64, 32], and their
    # residuals are no longer independent of each other, which widens the interval there and nowhere else.
    def both(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x @ w, v @ x.T

    graph = rk.trace(both, rk.Input("batch", 64), rk.Input(64, 32), rk.Input(32, 64))
    found = rk.sweep(graph, gpus=["nvidia-l4"], batch=range(28, 37))
    _as_predicted(graph, found)
    width = found["high_s"] / found["low_s"]
    assert width.idxmax() == 4  # batch 32


def test_memory_at_the_edge_of_what_fits() -> None:
    # Between the batch whose blocks cannot fit and the one whose blocks cannot but fit the allocator decides.
    graph = rk.trace(Attends(), rk.Input("batch", 256, 64), mode="training")
    most = rk.predict(graph, "nvidia-l4", batch=8).largest_batch()
    found = rk.sweep(graph, gpus=["nvidia-l4"], batch=range(most - 3, most + 4))
    assert found["fits"].tolist() == [True] * 4 + [False] * 3
    peak = rk.sweep(graph, gpus=["nvidia-l4"], batch=[most], memory="peak")
    assert peak["peak_bytes"][0] == found["peak_bytes"][3]
    assert "fits" not in peak
    assert "peak_bytes" not in rk.sweep(graph, gpus=["nvidia-l4"], batch=[most], memory=False)


def test_counts_beyond_64_bits_are_exact_all_the_same() -> None:
    graph = rk.trace(nn.Linear(4096, 4096, device="meta"), rk.Input("batch", 4096))
    huge = 2**45  # 2 · 2^45 · 4096² multiply-adds are 2^70
    found = rk.sweep(graph, gpus=["nvidia-l4"], batch=[1, huge, huge + 1, huge + 2, huge + 3])
    _as_predicted(graph, found)


def test_a_cpu() -> None:
    graph = _graph("attends", "inference")
    cpu = rk.devices(kind="cpu").index[0]
    _as_predicted(graph, rk.sweep(graph, gpus=[cpu], batch=[1, 8, 64], seq=[16, 128]))


def test_devices_with_other_kernels_are_predicted_apart() -> None:
    # cuDNN keeps the weights of such a layer on the SMs of an A100; an A30 has too few of them.
    lstm = rk.trace(nn.LSTM(512, 512), rk.Input(64, "batch", 512), dtype="float16")
    gpus, batches = ["nvidia-a30", "nvidia-a100-sxm4-80gb"], [8, 16, 24, 32, 40]
    rows = rk.sweep(lstm, gpus=gpus, batch=batches)
    alone = [rk.predict(lstm, gpu, batch=batch).total_s for gpu in gpus for batch in batches]
    assert rows["total_s"].tolist() == pytest.approx(alone, rel=1e-12)


def test_a_gpu_is_what_it_is_without_the_others() -> None:
    # Turing and Volta have an engine for fp16; only Volta's takes a pixel's gradients with channels first
    layers = nn.Sequential(nn.Conv2d(64, 64, 1), nn.ReLU(), nn.Conv2d(64, 64, 1))
    gpus, options = ["nvidia-t4", "nvidia-v100-sxm2-16gb"], {"mode": "training", "dtype": "float16"}

    def graph() -> rk.Graph:
        return rk.trace(layers, rk.Input("batch", 64, 28, 28), **options)

    together = graph()
    found = rk.sweep(together, gpus=gpus, batch=[8, 16, 24, 32, 40])
    for row in found.to_dict("records"):
        alone = rk.predict(graph(), row["gpu"], batch=row["batch"])
        assert row["total_s"] == pytest.approx(alone.total_s, rel=1e-9)
        assert rk.predict(together, row["gpu"], batch=row["batch"]).total_s == alone.total_s


def test_algorithms_for_convolutions_are_chosen_at_each_point() -> None:
    # FFT and Winograd with windows in columns of sizes, few channels, dilation, transposed, volumes; both libraries
    flat = nn.Sequential(
        nn.Conv2d(3, 16, 7, 2, 3), nn.Conv2d(16, 16, 5, padding=2), nn.Conv2d(16, 16, 3, padding=2, dilation=2),
        nn.ConvTranspose2d(16, 16, 4, 2, 1), nn.Conv2d(16, 8, 40, padding=20),
    )  # fmt: skip
    volume = nn.Sequential(nn.Conv3d(3, 16, 3, padding=1), nn.Conv3d(16, 16, 1), nn.Conv3d(16, 8, 3, dilation=2))
    for layers, shape in ((flat, ("batch", 3, "side", "side")), (volume, ("batch", 3, 8, "side", "side"))):
        graph = rk.trace(layers, rk.Input(*shape), mode="training", sizes={"batch": 3, "side": 24})
        gpus = ["nvidia-l4", "p100-pcie", "amd-mi300x", "amd-vega-64"]
        _as_predicted(graph, rk.sweep(graph, gpus=gpus, batch=[1, 2, 7, 64], side=[24, 40]))
