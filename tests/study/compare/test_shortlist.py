"""Which GPUs are compared where nobody names any, and the verdict in words."""

from datetime import date

import torch
from torch import nn

import rooflinekit as rk
from rooflinekit.hardware.device import Clock, Device, Memory
from rooflinekit.hardware.specs import devices, load_device
from rooflinekit.study.compare.gpus import MOST, shortlist, shortlist_rule
from rooflinekit.study.explain.explanation import verdict


def gpu(name: str, architecture: str, bandwidth: float, year: int, vendor: str = "Nobody") -> Device:
    return Device(
        name=name, vendor=vendor, architecture=architecture, sm_count=1, lanes_per_sm=64, clock=Clock(boost=1e9),
        dram=Memory(capacity=1e9, bandwidth=bandwidth), l2_capacity=1e6, vector_peak={"fp32": 128e9},
        launch_date=date(year, 1, 1),
    )  # fmt: skip


def test_the_rule_by_hand() -> None:
    old, new, newest = gpu("old", "A", 1e12, 2001), gpu("new", "B", 1e11, 2002), gpu("newest", "C", 1e11, 2003)
    slower, tie = gpu("slower", "A", 1e11, 2009), gpu("another", "C", 1e11, 2003)
    foreign = gpu("foreign", "D", 1e13, 2010, vendor="Somebody")
    known = [slower, old, newest, new, foreign, tie]
    # The subject first; of C the first by name, for it is no faster; "slower" is not the fastest of A.
    assert [d.name for d in shortlist(slower, known)] == ["slower", "another", "new", "old"]
    assert [d.name for d in shortlist(old, known)] == ["old", "another", "new"]
    many = [gpu(f"g{i}", f"arch{i}", 1e12, 2000 + i) for i in range(20)]
    assert [d.name for d in shortlist(many[0], many)] == ["g0", *(f"g{i}" for i in range(19, 19 - MOST, -1))]


def test_the_shipped_ones_are_distinct_and_of_one_vendor() -> None:
    subject = load_device("nvidia-l4")
    found = shortlist(subject, devices())
    assert found[0] == subject
    assert {device.vendor for device in found} == {"NVIDIA"}
    assert len({device.architecture for device in found[1:]}) == len(found) - 1 == MOST
    assert "NVIDIA" in shortlist_rule(subject)


def test_a_verdict_is_made_of_the_prediction_s_numbers() -> None:
    p = rk.predict(nn.Linear(64, 64), rk.Input(8, 64), gpu="nvidia-l4")
    words = verdict(p)
    assert words.startswith("The step is overhead-bound (")
    assert f"GPU waits for CPU {p.terms()['overhead'] / p.total_s:.0%} (" in words
    assert "FLOP at peak" not in words  # less than a tenth
    assert words.endswith("of 24.0 GiB of memory.")


def test_a_verdict_says_what_does_not_fit() -> None:
    with torch.device("meta"):
        large = nn.Linear(4096, 2**20)
    p = rk.predict(large, rk.Input("batch", 4096), gpu="nvidia-t4", batch=4096)
    assert not p.memory.fits
    assert verdict(p).endswith("of 16.0 GiB of memory and does not fit.")
