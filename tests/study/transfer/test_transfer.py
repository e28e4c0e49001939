"""From a measured step to another device: the condition of a normal distribution by hand, and laws."""

from __future__ import annotations

import json
import math
from functools import cache
from pathlib import Path

import pytest
import torch
from hypothesis import given as given_by
from hypothesis import settings
from hypothesis import strategies as st
from torch import nn

import rooflinekit as rk
from rooflinekit.calibrate.local_hardware.run_record import ProfiledOp
from rooflinekit.errors import CampaignError, InputError
from rooflinekit.study.errors.components import (
    FREEDOM,
    NETWORK,
    NETWORKS,
    OTHER_HOST,
    PROGRAM,
    SHARED,
    WHOLE,
    Chips,
    Kinship,
    Loaded,
    Part,
    chips_of,
    host_weight,
    parts_of,
    scaled,
)
from rooflinekit.study.transfer.evidence import Evidence, Seen, matched, read_measured
from rooflinekit.study.transfer.transferred import correcting, given

HERE, THERE, SIBLING = "nvidia-t4", "nvidia-a100-sxm4-80gb", "nvidia-a100-sxm4-40gb"
FAR = Kinship(chips=Chips.FOREIGN, same_host=True)
NEAR = Kinship(chips=Chips.KINDRED, same_host=True)
Net = nn.Sequential(nn.Conv2d(3, 64, 3), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.Flatten(), nn.LazyLinear(10))


@cache
def graph() -> rk.Graph:
    torch.manual_seed(0)
    Net(torch.zeros(1, 3, 16, 16))
    return rk.trace(Net, rk.Input("batch", 3, 16, 16))


@cache
def step(gpu: str, batch: int = 512) -> rk.Prediction:
    return rk.predict(graph(), gpu, batch=batch)


def test_one_part_by_hand() -> None:
    # One part of spread 0.3 seen with noise 0.1: 0.09 / (0.09 + 0.01) = 0.9 of 0.2 is the part's. Of its variance a
    # tenth is left, times (ν + 0.2²/0.1) / (ν + 1): Student's condition, as 0.2 is less than expected of √0.1.
    part = Part("host")
    loaded = {part: Loaded(weight=1.0, spread=0.3)}
    found = given([Seen(ln=0.2, parts=loaded, noise=0.1)], loaded, FAR)
    assert found.mean == pytest.approx(0.18)
    nu = FREEDOM
    assert found.surprise**2 == pytest.approx((nu + 0.4) / (nu + 1))
    assert found.spread == pytest.approx(found.surprise * math.sqrt(0.09 - 0.09 * 0.9))
    assert found.freedom == nu + 1
    assert found.before == pytest.approx(0.3)


def test_what_is_not_common_stays_unknown() -> None:
    # A network's error is correlated by r: of 0.2 seen without noise, r is expected; 1 - r² of the variance is left.
    r = NETWORKS[Chips.KINDRED]
    part = Part("network")
    loaded = {part: Loaded(weight=1.0, spread=0.1)}
    found = given([Seen(ln=0.2, parts=loaded, noise=1e-9)], loaded, NEAR)
    assert found.mean == pytest.approx(0.2 * r)
    assert found.spread == pytest.approx(found.surprise * 0.1 * math.sqrt(1 - r * r))


def test_a_gpus_constants_are_its_own() -> None:
    # Products seen 20 % slow, of which nothing is known but that they are products: nothing of it is another chip's.
    part = Part("family", "product")
    loaded = {part: Loaded(weight=1.0, spread=0.1)}
    assert given([Seen(ln=0.2, parts=loaded)], loaded, FAR).mean == 0
    assert given([Seen(ln=0.2, parts=loaded)], loaded, Kinship(chips=Chips.ONE, same_host=True)).mean > 0.15
    assert SHARED[Chips.SAME] == 1


def test_a_foreign_chip_is_told_of_the_program_and_the_host_alone() -> None:
    # 0.2 off, half of the variance each: nothing of a convolution, half of what the training script is off by.
    own = {Part("kernel", "convolution"): Loaded(weight=1.0, spread=0.1), WHOLE: Loaded(weight=1.0, spread=0.1)}
    assert given([Seen(ln=0.2, parts=own, noise=1e-9)], own, FAR).mean == 0
    both = {WHOLE: Loaded(weight=1.0, spread=0.1), PROGRAM: Loaded(weight=1.0, spread=0.1)}
    assert given([Seen(ln=0.2, parts=both, noise=1e-9)], both, FAR).mean == pytest.approx(0.5 * 0.1)


def test_chips_by_their_memory() -> None:
    # As many multiprocessors of one architecture; HBM on both; GDDR on both; one of each; two vendors.
    pairs = {
        ("nvidia-a100-sxm4-40gb", "nvidia-a100-sxm4-80gb"): Chips.ONE,
        ("nvidia-v100-sxm2-16gb", "nvidia-h100-sxm5-80gb"): Chips.KINDRED,
        ("nvidia-rtx-3090", "nvidia-rtx-4090"): Chips.KINDRED,
        ("nvidia-l40s", "nvidia-h100-sxm5-80gb"): Chips.FOREIGN,
        ("amd-mi300x", "nvidia-h100-sxm5-80gb"): Chips.FOREIGN,
        (HERE, HERE): Chips.SAME,
    }
    assert {names: chips_of(*map(rk.load_device, names)) for names in pairs} == pairs


def test_a_surprise_widens() -> None:
    # Off by as much as expected, √(0.09 + 0.01), nothing changes: (ν + 1) / (ν + 1). Thrice as far it widens.
    loaded = {Part("host"): Loaded(weight=1.0, spread=0.3)}
    usual, far = (given([Seen(ln=k * math.sqrt(0.1), parts=loaded, noise=0.1)], loaded, FAR) for k in (1, 3))
    assert usual.surprise == pytest.approx(1.0)
    assert far.surprise == pytest.approx(math.sqrt((FREEDOM + 9) / (FREEDOM + 1)))
    assert far.spread > usual.spread


def test_hosts_that_nobody_named_are_two() -> None:
    p, q = step(HERE), step(THERE)
    assert not Kinship.of(p, q).same_host
    assert Kinship.of(p, p).same_host
    named = [rk.predict(graph(), gpu, batch=512, host="generic-server") for gpu in (HERE, THERE)]
    assert Kinship.of(*named).same_host


def test_another_host_is_half_known() -> None:
    part = Part("host")
    loaded = {part: Loaded(weight=1.0, spread=0.5)}
    other = Kinship(chips=Chips.SAME, same_host=False)
    assert given([Seen(ln=0.4, parts=loaded, noise=1e-9)], loaded, other).mean == pytest.approx(0.4 * OTHER_HOST)


def test_weights_of_kernels_and_host_share_the_step() -> None:
    p = step(HERE)
    weights = [loaded.weight for part, loaded in parts_of(p).items() if part.level in ("kernel", "host")]
    assert sum(weights) == pytest.approx(1.0)
    small = step(THERE, 1)
    assert small.regime == "overhead"
    assert host_weight(small) > 0.5 > host_weight(p)
    assert scaled(p.host, 2).dispatch_s("matmul") == 2 * p.host.dispatch_s("matmul")


def test_a_step_as_predicted_changes_nothing_but_the_width() -> None:
    many = 1 << 14  # so that kernels decide: a host elsewhere stays unknown
    found = rk.transfer(step(THERE, many).total_s, graph(), measured_on=THERE, to=SIBLING, batch=many)  # of one chip
    plain = step(SIBLING, many)
    assert found.total_s == pytest.approx(plain.total_s)
    assert found.interval()[1] / found.interval()[0] < plain.interval()[1] / plain.interval()[0]
    # A faster host shortens it less than a slower one prolongs it: neither side is wider than plainly predicted, but
    # for what the network is off by itself: 2.0 of its spreads to either side, Student's of about five degrees.
    assert plain.interval()[0] * math.exp(-2.02 * NETWORK) <= found.interval()[0]
    assert found.interval()[1] < plain.interval()[1]
    assert sum(found.terms().values()) == pytest.approx(found.total_s)
    assert found.by_kind()["gpu_s"].sum() == pytest.approx(plain.gpu_s)


@settings(max_examples=20, deadline=None)
@given_by(st.floats(0.3, 3.0), st.floats(1.01, 1.5))
def test_slower_here_is_slower_there(factor: float, more: float) -> None:
    source, target = step(HERE), step("nvidia-l4")
    one, two = (correcting(Evidence.of(source.total_s * f), source)(target).total_s for f in (factor, factor * more))
    assert one < two < one * more


def test_the_same_device_is_believed_most() -> None:
    source = step(HERE)
    same = correcting(Evidence.of(1.5 * source.total_s), source)(source)
    other = correcting(Evidence.of(1.5 * source.total_s), source)(step(THERE))
    assert 1.4 * source.total_s < same.total_s <= 1.5 * source.total_s
    assert other.total_s / other.plain.total_s < same.total_s / same.plain.total_s
    assert same.posterior.spread < other.posterior.spread


def test_operators_move_the_steps_that_have_them() -> None:
    # Convolutions twice as slow as predicted, all else as predicted.
    source = step(HERE)
    ops = tuple(
        ProfiledOp(name=t.kernel.kind, depth=0, seconds=t.total_s * (2 if "convolution" in t.kernel.kind else 1))
        for t in source.timings
    )
    # On CUDA cores as here; on another unit half of it would count.
    found = correcting(Evidence(source="ops", ops=ops), source)(step("nvidia-l4"))
    parts = found.posterior.by_part
    moved = sum(ln for part, ln in parts.items() if "convolution" in part)  # by format, gradients apart
    assert moved > 0.05
    assert abs(parts.get("elementwise", 0.0)) < 0.3 * moved
    assert found.correction_s > 0


def test_calls_are_matched_by_shape_and_order() -> None:
    # The second convolution is called first, and both in three steps; no op has the third one's shapes.
    image, first = (512, 3, 16, 16), (64, 3, 3, 3)
    inner, second = (512, 64, 14, 14), (64, 64, 3, 3)
    call = lambda seconds, *shapes: ProfiledOp(name="aten::conv2d", depth=0, seconds=seconds, shapes=shapes)  # noqa: E731
    calls = [
        one
        for k in (1, 2, 3)
        for one in (call(k * 1e-3, inner, second), call(k * 1e-4, image, first), call(9.0, image, second))
    ]
    found = matched(calls, step(HERE))
    assert [one.measured_s for one in found if one.kind == "convolution"] == pytest.approx([2e-4, 2e-3])  # means
    in_order = matched([*calls[3:5], call(5e-3, (1, 1, 8, 8))], step(HERE))
    assert [one.measured_s for one in in_order if one.kind == "convolution"] == pytest.approx([2e-4, 2e-3])
    without = [ProfiledOp(name="aten::conv2d", depth=0, seconds=s) for s in (1.0, 2.0)]
    assert [one.measured_s for one in matched(without, step(HERE)) if one.kind == "convolution"] == [1.0, 2.0]


def test_a_residual_is_split() -> None:
    # Seen without noise, the parts add up to it; half of the variance is each one's, so is half of 0.2.
    loaded = {part: Loaded(weight=1.0, spread=0.1) for part in (Part("family", "product"), Part("network"))}
    found = given([Seen(ln=0.2, parts=loaded, noise=1e-9)], loaded, NEAR)
    assert found.split == pytest.approx({"constants": 0.1, "network": 0.1})
    assert found.mean == pytest.approx(0.1 * NETWORKS[Chips.KINDRED])  # the constants are the source's own


def test_other_sizes_executions_and_hosts() -> None:
    found = rk.transfer(
        1.3 * step(HERE).total_s, graph(), measured_on=HERE, to=THERE, batch=512,
        there={"batch": 64, "execution": "cuda-graph"}, to_host="xeon-server-2018",
    )  # fmt: skip
    assert (found.sizes["batch"], found.execution.backend, found.host.name) == (64, "cuda-graph", "xeon-server-2018")
    plain = rk.predict(graph(), THERE, batch=64, execution="cuda-graph", host="xeon-server-2018")
    assert found.plain.total_s == pytest.approx(plain.total_s)
    assert found.total_s > plain.total_s


def test_json_text_and_explanation_hold_the_correction() -> None:
    found = rk.transfer(1.3 * step(HERE).total_s, graph(), measured_on=HERE, to=THERE, batch=512)
    document = json.loads(json.dumps(found.to_dict()))
    assert document["transfer"]["measured_on"] == HERE
    assert document["terms"]["correction"] == pytest.approx(found.correction_s)
    assert "rests on a measured step of " in str(found)
    told = rk.explain(found.plain, found)
    assert told.terms()["correction"] == pytest.approx(found.correction_s)
    assert sum(told.terms().values()) == pytest.approx(told.delta_s)


@pytest.mark.parametrize(
    ("measured", "message"),
    [
        (0.0, "expected a time above 0 seconds"),
        (float("nan"), "expected a time above 0 seconds"),
        (True, "expected seconds, a Profile"),
        ("31 miles", "expected a time, such as"),
        (None, "measured: expected a time, a file or a profile"),
        (1e6, "it is of another network, batch or unit"),
        ({"aten::nothing": 1.0}, "none of its ops is one of"),
        ({3: 1.0}, "expected seconds by kind of op"),
    ],
)
def test_bad_measurements(measured: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        rk.transfer(measured, graph(), measured_on=HERE, to=THERE, batch=512)


def test_the_measured_device_must_be_named() -> None:
    with pytest.raises(InputError, match="measured_on: name the device"):
        rk.transfer(1e-3, graph(), to=THERE, batch=512)


def test_files(tmp_path: Path) -> None:
    table = tmp_path / "kernels.csv"
    table.write_text("name,seconds\naten::convolution,0.001\naten::convolution,0.002\n")
    (op,) = read_measured(str(table)).ops
    assert (op.name, op.seconds) == ("aten::convolution", pytest.approx(0.003))
    assert read_measured("31.2 ms").seconds == pytest.approx(0.0312)
    table.write_text("name,time\na,1\n")
    with pytest.raises(CampaignError, match="expected the columns name and seconds; got name, time"):
        read_measured(str(table))
    table.write_text("name,seconds\na,-1\n")
    with pytest.raises(CampaignError, match="line 2: seconds: expected a number above 0"):
        read_measured(str(table))
    with pytest.raises(InputError, match=r"expected a time, such as '31\.2 ms', or a file"):
        read_measured(str(tmp_path / "missing.json"))


def test_the_networks_own_spread_is_stated() -> None:
    assert parts_of(step(HERE))[Part("network")] == Loaded(weight=1.0, spread=NETWORK)


def test_a_comparison_rests_on_it() -> None:
    measured = 1.5 * step(HERE).total_s
    found = rk.compare_gpus(graph(), gpus=[HERE, THERE], batch=512, measured=measured, measured_on=HERE)
    by_name = {p.machine.name: p for p in found.predictions}
    alone = rk.transfer(measured, graph(), measured_on=HERE, to=THERE, batch=512)
    assert by_name[THERE].total_s == pytest.approx(alone.total_s)
    assert found.table.loc[HERE, "total_s"] == pytest.approx(by_name[HERE].total_s)
    assert by_name[HERE].total_s > 1.4 * step(HERE).total_s
    with pytest.raises(InputError, match="measured_on: name the device"):
        rk.compare_gpus(graph(), gpus=[HERE, THERE], batch=512, measured=measured)


def test_advice_on_a_transferred_step_rests_on_its_measurement() -> None:
    found = rk.transfer("1.5 ms", graph(), measured_on=HERE, to=THERE, batch=512)
    by_itself = rk.advise(found)
    given_anew = rk.advise(step(THERE), measured="1.5 ms", measured_on=HERE)
    assert [one.to_dict() for one in by_itself.suggestions] == [one.to_dict() for one in given_anew.suggestions]
    assert by_itself.base.total_s == pytest.approx(found.total_s)
    assert {"correction"} <= by_itself.suggestions[0].saved_terms().keys()
