"""The largest step that fits."""

import pytest
import torch
from torch import nn

import rooflinekit as rk
from rooflinekit.errors import SizeError
from rooflinekit.step.capacity import largest

MIB = 2**20


@pytest.mark.parametrize("most", [0, 1, 2, 3, 7, 8, 9, 1000])
def test_the_search_finds_the_last_that_fits(most: int) -> None:
    tried: list[int] = []

    def fits(value: int) -> bool:
        tried.append(value)
        return value <= most

    assert largest(fits) == most
    assert len(tried) == len(set(tried)) <= 22


def test_by_hand() -> None:
    # Rows of 1 MiB, in and out of a ReLU: two tensors of as many MiB, in segments of whole 2 MiB from 10 MiB on.
    p = rk.predict(nn.ReLU(), rk.Input("rows", 2**18), gpu="nvidia-l4", rows=16)
    assert p.memory.peak_bytes == p.memory.reserved_bytes == 32 * MIB
    # 24 GiB, of which a driver leaves 24217/24576; 500 MiB for CUDA: 23717 MiB for both, and both even
    assert p.memory.capacity == 24 * 2**30
    assert p.largest_batch("rows") == 11858


@pytest.mark.parametrize("mode", ["inference", "training"])
@pytest.mark.parametrize("backend", ["eager", "compiled"])
def test_laws(mode: str, backend: str) -> None:
    model = nn.Sequential(nn.Conv2d(3, 64, 3), nn.BatchNorm2d(64), nn.ReLU(), nn.Conv2d(64, 64, 3))
    options = {"optimizer": torch.optim.AdamW} if mode == "training" else {}
    graph = rk.trace(model, rk.Input("batch", 3, 128, 128), mode=mode, **options)

    def at(batch: int) -> rk.Prediction:
        return rk.predict(graph, "nvidia-rtx-3070", batch=batch, execution=backend)

    used = [at(batch).memory for batch in (1, 2, 3, 8, 64, 65)]
    peaks = [memory.peak_bytes for memory in used]
    assert peaks == sorted(peaks)
    assert all(memory.peak_bytes <= memory.reserved_bytes for memory in used)
    most = at(1).largest_batch()
    assert at(most).memory.fits
    assert not at(most + 1).memory.fits
    assert at(7).largest_batch() == most


def test_more_memory_fits_more() -> None:
    device = rk.load_device("nvidia-l4")
    graph = rk.trace(nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()), rk.Input("batch", 3, 224, 224))
    found = [
        rk.predict(graph, device.replace(dram={"capacity": capacity}), batch=1).largest_batch()
        for capacity in ("2 GB", "8 GB", "24 GB")
    ]
    assert 0 < found[0] < found[1] < found[2]


def test_compiled_steps_keep_less() -> None:
    # A compiled step never stores what stands between the two products.
    model = nn.Sequential(nn.Linear(512, 4096), nn.GELU(), nn.Softplus(), nn.Tanh(), nn.Linear(4096, 16))
    graph = rk.trace(model, rk.Input(8192, 512))
    eager, compiled = (rk.predict(graph, "nvidia-l4", execution=b).memory.peak_bytes for b in ("eager", "compiled"))
    assert compiled <= eager


def test_what_has_no_answer_is_said() -> None:
    p = rk.predict(nn.ReLU(), rk.Input("rows", 4), gpu="nvidia-l4", rows=4)
    with pytest.raises(SizeError, match="no size is named 'batch' in this workload: it has 'rows'"):
        p.largest_batch()
    large = nn.Linear(10**5, 10**5, device="meta")
    assert rk.predict(large, rk.Input("batch", 10**5), gpu="nvidia-l4", batch=1).largest_batch() == 0


def test_modules_hold_what_they_were_called_with() -> None:
    class Twice(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.exp().exp()

    def held(x: torch.Tensor) -> torch.Tensor:
        return Twice()(x.exp())

    def alone(x: torch.Tensor) -> torch.Tensor:
        return x.exp().exp().exp()

    # 4 MiB each: the input; what the module holds; its first result and its second. Alone: input and two.
    peaks = [rk.predict(f, rk.Input(2**20), gpu="nvidia-l4").memory.peak_bytes for f in (held, alone)]
    assert peaks == [16 * MIB, 12 * MIB]


def test_autocast_keeps_its_copies_of_weights() -> None:
    # Two products without bias, 1024 x 1024: 4 MiB each, half of it in fp16; beside them a row, cuBLAS's 8.125 MiB.
    model = nn.Sequential(*(nn.Linear(1024, 1024, bias=False) for _ in range(2)))
    memory = rk.predict(model, rk.Input(1, 1024), gpu="nvidia-l4", autocast="fp16").memory
    rows = 4096 + 2 * 2048  # the input and two products
    assert memory.peak_bytes == (2 * 4 + 2 * 2) * MIB + 8_519_680 + rows


@pytest.mark.parametrize(
    ("network", "gpu", "mib"),
    [
        (nn.Conv2d(3, 8, 3), "nvidia-l4", 1100),  # 500 MiB of CUDA, 600 of cuDNN
        (nn.Conv2d(3, 8, 3), "amd-mi300x", 500),
        (nn.Flatten(), "nvidia-l4", 500),
        (nn.Conv2d(3, 8, 3), "intel-core-i7-12700h", 0),
    ],
)
def test_cudnn_takes_its_own(network: nn.Module, gpu: str, mib: int) -> None:
    graph = rk.trace(network, rk.Input("batch", 3, 32, 32))
    assert rk.predict(graph, gpu, batch=8).memory.context_bytes == mib * 2**20
