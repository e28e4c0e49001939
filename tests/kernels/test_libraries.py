"""Which libraries a device has, and what their records of algorithms must say."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from torch import nn

import rooflinekit as rk
from rooflinekit.calibrate.fitting.constants import CONSTANTS
from rooflinekit.kernels import algorithms, cudnn, depthwise, libraries, miopen, onednn
from rooflinekit.kernels.algorithms import Algorithm, ByUnit, Libraries
from rooflinekit.kernels.libraries import libraries_of


def records() -> Iterator[Algorithm]:
    """Every record of every library."""
    for module in (algorithms, cudnn, miopen, onednn, depthwise):
        yield from (one for name, one in vars(module).items() if isinstance(one, Algorithm) and name[0] != "_")
    for library in (cudnn, miopen):
        yield from library.IMPLICIT.values()


@pytest.mark.parametrize("record", dict.fromkeys(records()), ids=str)
def test_records_name_constants_that_exist(record: Algorithm) -> None:
    of_units = (getattr(pair, unit) for pair in (record.rate, record.prologue)
                for unit in ("cuda_cores", "tensor_cores"))  # fmt: skip
    others = record.cycles, record.latency, record.half_rate, record.window_cycles, record.tap_cycles
    assert {name for name in (*of_units, *others) if name} <= set(CONSTANTS)
    assert (record.shape == "threads") == bool(record.tap_cycles)


def test_a_vendor_whose_libraries_are_not_known_is_told() -> None:
    graph = rk.trace(nn.Conv2d(16, 16, 3), rk.Input(1, 16, 8, 8))
    notes = {name: rk.predict(graph, name).notes for name in ("intel-max-1550", "nvidia-l4", "amd-mi300x")}
    told = "the libraries of Intel are not known: algorithms are those of cuBLAS, cuDNN, ATen"
    assert [told in found for found in notes.values()] == [True, False, False]
    assert libraries_of(rk.load_device("intel-xeon-platinum-8480plus")).names == ("oneDNN",)


def test_a_vendor_is_one_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """A library of which all that is known is a record: its algorithm runs, and no stand-in is told."""
    own = Algorithm(name="direct", library="oneDNN for GPUs", rate=ByUnit.both("untuned_convolution"))
    record = Libraries(
        products="oneMKL", convolutions=own.library, rates="cuDNN", implicit=lambda p, math, threads: (own,)
    )
    monkeypatch.setitem(libraries.OF_GPUS, "Intel", record)
    found = rk.predict(rk.trace(nn.Conv2d(16, 16, 3, bias=False), rk.Input(1, 16, 8, 8)), "intel-max-1550")
    assert [timing.kernel.algorithm for timing in found.timings if timing.kernel.cost.gemms] == [own]
    assert not any("are not known" in note for note in found.notes)
