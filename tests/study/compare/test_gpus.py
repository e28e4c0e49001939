"""One workload on many GPUs: each row is a direct prediction, and the reasons are differences of terms."""

import json
from itertools import pairwise

import pytest
from round_numbers import constants
from torch import nn

import rooflinekit as rk
from rooflinekit.errors import FormatError, InputError
from rooflinekit.hardware.device import Device
from rooflinekit.hardware.host import Host
from rooflinekit.step.execution import Execution
from rooflinekit.study.compare.gpus import GpuComparison, compare_machines
from rooflinekit.timing.machine import Machine

GPUS = ["nvidia-l4", "nvidia-a100-sxm4-80gb", "nvidia-rtx-3090", "nvidia-v100-pcie-16gb", "nvidia-k80"]


@pytest.fixture(scope="module")
def graph() -> rk.Graph:
    body = nn.Sequential(nn.Conv2d(3, 64, 7, stride=2), nn.BatchNorm2d(64), nn.ReLU(), nn.Conv2d(64, 64, 3))
    return rk.trace(body, rk.Input("batch", 3, 224, 224))


def test_each_row_is_the_direct_prediction(graph: rk.Graph) -> None:
    found = rk.compare_gpus(graph, gpus=GPUS, batch=32, execution="compiled")
    assert set(found.table.index) == set(GPUS)
    for row in found.table.itertuples():
        p = rk.predict(graph, row.Index, batch=32, execution="compiled")
        assert (row.total_s, row.low_s, row.high_s) == (p.total_s, *p.interval(0.9))
        assert (row.fits, row.peak_bytes, row.regime) == (p.memory.fits, p.memory.peak_bytes, p.regime)
        assert row.throughput == 32 / p.total_s
        assert row.share_of_peak == sum(timing.ideal_s for timing in p.timings) / p.total_s
        device = rk.load_device(row.Index)
        # Two devices share a K80's 300 W; the others stand alone.
        assert row.per_watt == pytest.approx(32 / p.total_s / device.board_power * device.devices_per_board)
        if device.launch_price_usd is not None:
            assert row.per_dollar == 32 / p.total_s / device.launch_price_usd


def test_the_order_and_its_reasons(graph: rk.Graph) -> None:
    found = rk.compare_gpus(graph, gpus=GPUS, batch=32)
    assert list(found.table["total_s"]) == sorted(found.table["total_s"])
    names = list(found.table.index)
    assert [(pair.faster.machine.name, pair.slower.machine.name) for pair in found.neighbours] == list(pairwise(names))
    for pair in found.neighbours:
        assert sum(pair.terms().values()) == pytest.approx(pair.slower.total_s - pair.faster.total_s)
        sizes = list(map(abs, pair.terms().values()))
        assert sizes == sorted(sizes, reverse=True)
        assert pair.certain == (pair.bounds.low > 1)


@pytest.mark.parametrize(
    ("sort", "column"), [("per-dollar", "per_dollar"), ("per-watt", "per_watt"), ("energy", "per_joule")]
)
def test_sorting_puts_the_best_first_and_the_unknown_last(graph: rk.Graph, sort: str, column: str) -> None:
    values = rk.compare_gpus(graph, gpus=[*GPUS, "nvidia-rtx-4090"], batch=32, sort=sort).table[column]
    known = values.dropna()
    assert list(known) == sorted(known, reverse=True)
    assert list(values.index[: len(known)]) == list(known.index)


def test_per_dollar_goes_by_the_price_of_an_hour_where_one_is_given(graph: rk.Graph) -> None:
    # equal hours: the faster GPU gives more samples a dollar, whatever it was sold for
    hour = rk.Price(hour=1.0, currency="USD")
    found = rk.compare_gpus(graph, gpus=GPUS, batch=32, sort="per-dollar", price=hour)
    assert list(found.table["total_s"]) == sorted(found.table["total_s"])
    assert "USD a million samples" in str(found)
    assert "$1000" not in str(found)
    launched = str(rk.compare_gpus(graph, gpus=GPUS, batch=32, sort="per-dollar"))
    assert "$1000" in launched
    assert "last, for want of a launch price: " in launched


def _compared(host: Host, *devices: Device) -> GpuComparison:
    """ReLU of 2^28 numbers, 1 GiB in and out."""
    graph = rk.trace(nn.ReLU(), rk.Input("batch", 2**20)).at(batch=256)
    machines = [Machine.of(one, constants()) for one in devices]
    return compare_machines(graph, machines, host, Execution(sync="none"))


def _round_comparison(device: Device, host: Host, **second: object) -> GpuComparison:
    """On 1 TB/s, and on a second device."""
    return _compared(host, device, device.replace(name="other-gpu", **second))


def test_more_flop_and_less_bandwidth_is_found(device: Device, host: Host) -> None:
    # 2^31 bytes at 1 TB/s take 2.147 ms, at 250 GB/s 8.590 ms; 2^28 FLOP at 10 TFLOP/s 0.027 ms, at 20 half of that.
    # Arithmetic is hidden by traffic on both: 8.590 − 2.147 = 6.442 ms.
    found = _round_comparison(device, host, vector_peak={"fp32": 20e12}, dram={"bandwidth": 250e9})
    (pair,) = found.surprises
    assert (pair.faster.machine.name, pair.slower.machine.name) == ("round-gpu", "other-gpu")
    assert pair.ratio == pytest.approx(4, rel=0.02)
    assert next(iter(pair.terms())) == "memory"
    assert str(found).splitlines()[-1] == (
        "More FLOP/s, yet slower: other-gpu states 20.0 TFLOP/s against 10.0 TFLOP/s in fp32 of round-gpu, and takes "
        "8.59 ms against 2.15 ms; it has memory traffic +6.44 ms (DRAM 250 GB/s against 1.00 TB/s)."
    )


def test_no_claim_where_either_may_be_faster(device: Device, host: Host) -> None:
    found = _round_comparison(device, host, vector_peak={"fp32": 20e12}, dram={"bandwidth": 900e9})
    assert found.surprises == ()
    assert str(found).splitlines()[-1] == (
        "The order of round-gpu and other-gpu is not certain: the 90 % interval of the ratio of neighbours includes 1."
    )


def test_claims_are_made_by_pairs(device: Device, host: Host) -> None:
    # Four boards with one chip: of 0.1² that a family shares 0.94 is common, of a kernel's own 0.2² 0.91, of the
    # network's 0.08² 0.81. 2 · (0.01 · 0.06 + 0.04 · 0.09 + 0.0064 · 0.19) is 0.104²; exp(1.645 · 0.104) = 1.187, while
    # the intervals of two times are apart from exp(2 · 1.645 · √0.05) = 2.09 on. Neighbours differ by 1.15, others by
    # 1.32 and more.
    steps = {"a": 1e12, "b": 0.87e12, "c": 0.756e12, "d": 0.657e12}
    devices = [device.replace(name=name, dram={"bandwidth": bandwidth}) for name, bandwidth in steps.items()]
    found = _compared(host, *devices)
    assert not any(pair.certain for pair in found.neighbours)
    assert found.claims == (("a", "c"), ("a", "d"), ("b", "d"))
    assert str(found).splitlines()[-1] == (
        "The order of a, b, c and d is not certain: the 90 % interval of the ratio of neighbours includes 1. "
        "For certain, a is faster than c and d and b is faster than d."
    )
    assert found.to_dict()["certainly_faster"] == [["a", "c"], ["a", "d"], ["b", "d"]]
    assert "For certain, a is faster than c and d" in found._repr_html_()


def test_where_all_wait_for_the_cpu_one_sentence_says_so() -> None:
    graph = rk.trace(nn.Sequential(*[nn.ReLU()] * 8), rk.Input("batch", 16))
    found = rk.compare_gpus(graph, gpus=["nvidia-l4", "nvidia-t4"], batch=1)
    assert {row["regime"] for row in found.rows} == {"overhead"}
    assert "All of them wait for the CPU, which takes " in str(found)
    assert "The GPUs alone would take: nvidia-" in str(found)
    assert "All of them" not in str(rk.compare_gpus(graph, gpus=["nvidia-l4", "nvidia-t4"], batch=2**22))


def test_each_peak_stands_with_what_it_is_computed_in() -> None:
    # In tf32 the L4 states 60.6 TFLOP/s; the V100 has no such unit and takes fp32.
    graph = rk.trace(nn.Conv2d(64, 64, 1), rk.Input("batch", 64, 56, 56))
    found = rk.compare_gpus(graph, gpus=["nvidia-l4", "nvidia-v100-sxm2-16gb"], batch=64)
    (pair,) = found.surprises
    assert (str(pair.slower_math), str(pair.faster_math)) == ("tf32", "fp32")
    assert "nvidia-l4 states 60.6 TFLOP/s in tf32 against 15.7 TFLOP/s in fp32 of nvidia-v100-sxm2-16gb" in str(found)


def test_what_does_not_fit_comes_last_and_is_in_no_reason(device: Device, host: Host) -> None:
    found = _round_comparison(device, host, dram={"bandwidth": 4e12, "capacity": 1e9})
    assert [row["fits"] for row in found.rows] == [True, False]
    assert found.rows[1]["total_s"] < found.rows[0]["total_s"]
    assert found.neighbours == found.surprises == ()


def test_what_fits_nowhere_is_said(device: Device, host: Host) -> None:
    # 2 GiB are read and written
    small = device.replace(dram={"capacity": 1e9})
    assert (
        str(_round_comparison(small, host, dram={"capacity": 2e9})).splitlines()[-1]
        == "It fits the memory of none of them."
    )


def test_a_gpu_without_the_arithmetic_is_named(graph: rk.Graph) -> None:
    double = rk.trace(nn.Linear(64, 64), rk.Input("batch", 64), dtype="float64")
    found = rk.compare_gpus(double, gpus=["nvidia-a100-sxm4-80gb", "apple-m1-max-32c"], batch=8)
    assert len(found.predictions) == 1
    assert found.refused["apple-m1-max-32c"].startswith("apple-m1-max-32c ")
    with pytest.raises(FormatError, match="none of the GPUs can run it: apple-m1-max-32c"):
        rk.compare_gpus(double, gpus=["apple-m1-max-32c"], batch=8)


def test_json_holds_numbers_or_null(graph: rk.Graph) -> None:
    found = rk.compare_gpus(graph, gpus=GPUS, batch=32)
    document = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert [row["gpu"] for row in document["gpus"]] == list(found.table.index)
    assert {row["gpu"]: row["per_dollar"] for row in document["gpus"]}["nvidia-l4"] is None
    assert document["sentences"] == str(found).splitlines()[-len(document["sentences"]) :]
    assert document["counted"] == "samples"


def test_a_step_without_a_batch_is_counted_in_steps() -> None:
    found = rk.compare_gpus(nn.ReLU(), rk.Input(64, 64), gpus=["nvidia-l4"])
    assert found.counted == "steps"
    assert found.rows[0]["throughput"] == 1 / found.predictions[0].total_s


def test_by_default_every_gpu_that_is_no_draft(graph: rk.Graph) -> None:
    found = rk.compare_gpus(graph, batch=1)
    drafts = set(rk.devices(kind="gpu").query("draft").index)
    packages = {"amd-mi250", "amd-mi250x"}  # two devices of PyTorch each, which are there by themselves
    assert set(found.table.index) | set(found.refused) == set(rk.devices(kind="gpu").index) - drafts - packages


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"sort": "tiem"},
            "sort: expected time, per-dollar, per-watt, share-of-peak, price, energy, cost; got 'tiem'; did you",
        ),
        ({"gpus": []}, "gpus: expected a list of names, paths or Devices; got []"),
        ({"gpus": ["nvidia-l4", "L4"]}, "gpus: 'nvidia-l4' is given twice"),
    ],
)
def test_wrong_words(graph: rk.Graph, options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError) as caught:
        rk.compare_gpus(graph, **{"gpus": GPUS, **options}, batch=1)
    assert str(caught.value).startswith(message)
