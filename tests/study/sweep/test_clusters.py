"""Rows of clusters and strategies are what `parallel` says, and searches find the best of them."""

from typing import Any

import pytest
from refusals import refused
from torch import nn

import rooflinekit as rk
from rooflinekit.errors import RooflinekitError

CLUSTERS = ["dgx-a100", "dgx-h100"]
GLOO = rk.DDP(backend="gloo")
PRICES = {"nvidia-a100-sxm4-80gb": 12_000, "nvidia-h100-sxm5-80gb": 30_000}


@pytest.fixture(scope="module")
def graph() -> rk.Graph:
    net = nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 512))
    return rk.trace(net, rk.Input("batch", 512), mode="training", name="net")


def test_rows_are_what_parallel_says(graph: rk.Graph) -> None:
    strategies, savers = ["fsdp", GLOO], [rk.Savers(), rk.Savers(accumulate=2)]
    found = rk.sweep(graph, clusters=CLUSTERS, gpus=[1, 4], strategies=strategies, savers=savers, batch=[64, 256])
    assert len(found) == 2 * 2 * 2 * 2 * 2
    assert found["problem"].eq("").all()
    by_name = {"fsdp": rk.FSDP(), "DDP(backend='gloo')": GLOO}
    for row in found.iloc[[0, 5, 12, 22, 31]].to_dict("records"):
        parts = 2 if row["savers"] == "accumulate 2" else 1
        p = rk.parallel(
            graph, cluster=row["cluster"], gpus=row["gpus"], strategy=by_name[row["strategy"]],
            savers=rk.Savers(accumulate=parts), batch=row["batch"],
        )  # fmt: skip
        expected = [p.total_s, *p.interval(0.9), p.throughput, p.communication_s, p.exposed_s]
        names = ["total_s", "low_s", "high_s", "throughput", "communication_s", "exposed_s"]
        assert [row[name] for name in names] == pytest.approx(expected)
        assert (row["fits"], row["peak_bytes"]) == (p.fits, max(share.memory.peak_bytes for share in p.shares))


def test_a_step_that_cannot_be_cut_says_why(graph: rk.Graph) -> None:
    found = rk.sweep(graph, clusters=CLUSTERS[:1], batch=[4, 8])  # all eight devices
    assert found["problem"].tolist() == ["batch=4 cannot be cut for 8 devices: expected 8 or more", ""]
    assert found["total_s"].isna().tolist() == found["peak_bytes"].isna().tolist() == [True, False]
    assert found["fits"].tolist() == [False, True]


def test_by_other_processes_and_into_a_file(graph: rk.Graph, tmp_path: Any) -> None:
    import pandas as pd

    options: dict[str, Any] = {"clusters": CLUSTERS, "gpus": [2], "batch": range(8, 14)}
    alone = rk.sweep(graph, **options)
    pd.testing.assert_frame_equal(rk.sweep(graph, workers=2, **options), alone)
    back = pd.read_csv(rk.sweep(graph, out=tmp_path / "s.csv", **options), keep_default_na=False)
    pd.testing.assert_frame_equal(back, alone, check_dtype=False)


def test_a_model_is_traced_for_training() -> None:
    found = rk.sweep(nn.Linear(64, 64), rk.Input("batch", 64), clusters=CLUSTERS[:1], batch=64)
    step = rk.parallel(nn.Linear(64, 64), rk.Input("batch", 64), cluster=CLUSTERS[0], batch=64)
    assert found["total_s"].tolist() == [pytest.approx(step.total_s)]
    assert found["communication_s"][0] > 0  # gradients


def test_the_cheapest_that_meets_a_bound(graph: rk.Graph) -> None:
    options: dict[str, Any] = {
        "clusters": CLUSTERS, "gpus": [1, 2, 4], "strategies": ["ddp", "fsdp"], "batch": [2, 4096],
    }  # fmt: skip
    rows = rk.sweep(graph, **options)
    rows["price"] = rows["gpus"] * rows["cluster"].map(dict(zip(CLUSTERS, PRICES.values(), strict=True)))
    bound_s = rows[rows["batch"] == 4096]["total_s"].median()
    fast = rows[(rows["total_s"] < bound_s) & (rows["batch"] >= 1000) & rows["fits"]]
    require = [f"time<{bound_s} s", "batch>=1000"]
    found = rk.search(graph, minimize="price", prices=PRICES, require=require, **options)
    assert found.best["price"] == fast["price"].min()
    assert (found.predicted, found.exhaustive) == (24, True)
    quickest = rk.search(graph, require=["batch>=1000"], **options).best
    assert quickest["total_s"] == pytest.approx(rows[rows["batch"] == 4096]["total_s"].min())


def test_what_comes_closest_says_what_it_misses(graph: rk.Graph) -> None:
    found = rk.search(graph, clusters=CLUSTERS[:1], gpus=[8], require=["time<1 ns"], batch=[4])
    assert found.best is None
    assert found.closest["misses"].tolist() == ["batch=4 cannot be cut for 8 devices: expected 8 or more"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "expected gpus=[…], or clusters=[…] for training steps on several devices"),
        ({"gpus": [4]}, "gpu: expected a name, a path or a Device; got 4"),
        ({"gpus": ["nvidia-l4"], "strategies": ["ddp"], "savers": rk.Savers()},
         "strategies, savers: only training steps on several devices have it: give clusters=[…] too"),
        ({"clusters": "dgx-a100"}, "clusters: expected a list; got 'dgx-a100'"),
        ({"clusters": []}, "clusters: expected one or more; got none"),
        ({"clusters": CLUSTERS, "gpus": ["nvidia-l4"]},
         "gpus: beside clusters, how many devices take part: expected integers; got 'nvidia-l4'"),
        ({"clusters": CLUSTERS, "gpus": [9]}, "dgx-a100 has 8 devices; got gpus=9"),
        ({"clusters": CLUSTERS, "strategies": ["dpd"]},
         "strategy: expected dp, ddp, ddp-gloo, zero-1, zero-2, zero-3, fsdp, tensor, context, expert, pipeline; "
         "got 'dpd'; did you mean 'dp' or 'ddp' or 'fsdp'?"),
        ({"clusters": CLUSTERS, "savers": ["offload"]}, "savers: expected Savers(…), or several; got 'offload'"),
        ({"clusters": CLUSTERS, "split": "odd"}, "split: expected 'even' or 'proportional'; got 'odd'"),
    ],
)  # fmt: skip
def test_wrong_use(graph: rk.Graph, options: dict[str, Any], message: str) -> None:
    with refused(RooflinekitError, message):
        rk.sweep(graph, batch=8, **options)


@pytest.mark.parametrize(
    ("prices", "message"),
    [
        (None, "minimize 'price': no launch price is known of nvidia-a100-sxm4-80gb; give "
         "prices={'nvidia-a100-sxm4-80gb': …} (--price nvidia-a100-sxm4-80gb=… on the command line)"),
        ({"h100": 1}, "prices: device 'h100' is not among those compared: nvidia-a100-sxm4-80gb"),
        ({"nvidia-a100-sxm4-80gb": 0},
         "prices: 'nvidia-a100-sxm4-80gb': expected dollars, a positive number; got 0"),
    ],
)  # fmt: skip
def test_wrong_prices(graph: rk.Graph, prices: dict[str, float] | None, message: str) -> None:
    with refused(RooflinekitError, message):
        rk.search(graph, clusters=CLUSTERS[:1], minimize="price", prices=prices, batch=8)
