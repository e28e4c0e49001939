"""What oneDNN takes beside PyTorch's tensors for a convolution on a CPU, against the memory of a real process."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import rooflinekit as rk

_CASES = {
    "wide result": ((256, 512, 3), (8, 256, 28, 28), False),  # it is written from blocks into another as large
    "wide weight": ((512, 1024, 3), (2, 512, 14, 14), False),  # image and weight in blocks are larger
    "channels last": ((256, 512, 3), (8, 256, 28, 28), True),
}

# Every block that malloc gives is a mapping of its own and goes back at once, so the process's peak is what is alive.
_MEASURED = """
import ctypes, json, sys, torch
ctypes.CDLL("libc.so.6").mallopt(-3, 65536)  # M_MMAP_THRESHOLD
held = lambda name: next(int(s.split()[1]) * 1024 for s in open("/proc/self/status") if s.startswith(name))
found = {}
for name, ((a, b, k), size, last) in json.loads(sys.argv[1]).items():
    form = torch.channels_last if last else torch.contiguous_format
    layer = torch.nn.Conv2d(a, b, k, padding=k // 2).to(memory_format=form)
    x = torch.randn(size).to(memory_format=form)
    with torch.no_grad():
        layer(x)
        open("/proc/self/clear_refs", "w").write("5")
        before = held("VmRSS")
        layer(x)
    found[name] = held("VmHWM") - before
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def measured() -> dict[str, int]:
    if not Path("/proc/self/clear_refs").exists() or not torch.backends.mkldnn.is_available():
        pytest.skip("needs Linux and oneDNN")
    told = [sys.executable, "-c", _MEASURED, json.dumps(_CASES)]
    return dict(json.loads(subprocess.run(told, check=True, capture_output=True, text=True).stdout))


@pytest.mark.parametrize("name", _CASES)
def test_a_convolution_takes_what_the_process_does(name: str, measured: dict[str, int]) -> None:
    (channels, results, side), size, last = _CASES[name]
    with torch.device("meta"):
        layer = nn.Conv2d(channels, results, side, padding=side // 2)
    memory = rk.predict(rk.trace(layer, rk.Input(*size), channels_last=last), "generic-cloud-cpu-avx512").memory
    before = memory.weight_bytes + 4 * torch.Size(size).numel()
    assert memory.peak_bytes - before == pytest.approx(measured[name], rel=0.03, abs=2**18)
