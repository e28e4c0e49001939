"""Sweeps by other processes, and in files."""

import json
import pickle
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from refusals import refused
from torch import nn

import rooflinekit as rk
from rooflinekit.errors import InputError, OutputError, RooflinekitError
from rooflinekit.study.sweep import plan as sweep_plan

GPUS = ["nvidia-l4", "nvidia-a100-sxm4-80gb"]


@pytest.fixture(scope="module")
def graph() -> rk.Graph:
    return rk.trace(nn.Sequential(nn.Linear(64, 128), nn.ReLU()), rk.Input("batch", 64), name="net")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of 10 sizes and two cases, so that there are many."""
    monkeypatch.setattr(sweep_plan, "BLOCK", 10)
    monkeypatch.setattr(sweep_plan, "_ROWS", 20)


def swept(graph: rk.Graph, **options: Any) -> Any:
    return rk.sweep(graph, gpus=GPUS, execution=["eager", "compiled"], batch=range(1, 26), **options)


def read_csv(path: Path) -> pd.DataFrame:
    """Of a column that is empty pandas would say that it is missing numbers."""
    return pd.read_csv(path, keep_default_na=False)


def same(a: pd.DataFrame, b: pd.DataFrame) -> None:
    pd.testing.assert_frame_equal(a, b, rtol=1e-9)


@pytest.mark.usefixtures("small")
def test_any_executor_gives_the_same_rows(graph: rk.Graph) -> None:
    alone = swept(graph, workers=1)
    assert alone[["gpu", "execution", "batch"]].to_numpy().tolist() == [
        [gpu, way, batch] for gpu in GPUS for way in ("eager", "compiled") for batch in range(1, 26)
    ]
    same(swept(graph, workers=2), alone)
    with ThreadPoolExecutor(3) as threads:
        same(swept(graph, executor=threads), alone)
    with ProcessPoolExecutor(1) as processes:
        same(swept(graph, executor=processes), alone)


class Messages(Executor):
    """As mpi4py.futures.MPIPoolExecutor: a worker gets a message of bytes and answers with one; it is given late."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future = Future[Any]()
        future.set_running_or_notify_cancel()
        done, given, options = pickle.loads(pickle.dumps((fn, args, kwargs)))
        answer = pickle.dumps(done(*given, **options))
        threading.Timer(0.01, lambda: future.set_result(pickle.loads(answer))).start()
        return future


@pytest.mark.usefixtures("small")
def test_an_executor_that_sends_messages(graph: rk.Graph) -> None:
    assert not hasattr(Messages(), "_max_workers")
    same(swept(graph, executor=Messages()), swept(graph, workers=1))


@pytest.mark.slow
@pytest.mark.usefixtures("small")
@pytest.mark.filterwarnings("ignore")  # of the cluster's own start and end
def test_a_dask_cluster_gives_the_same_rows(graph: rk.Graph, tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed")
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None, "local_directory": str(tmp_path)}
    with distributed.LocalCluster(**options) as cluster, distributed.Client(cluster) as client:
        same(swept(graph, executor=client.get_executor()), swept(graph, workers=1))


def test_several_models_have_a_column(graph: rk.Graph) -> None:
    other = rk.trace(nn.Linear(64, 8), rk.Input("batch", 64))
    found = rk.sweep({"a": graph, "b": other}, gpus=GPUS[:1], batch=[1, 2])
    assert found["model"].tolist() == ["a", "a", "b", "b"]
    alone = rk.sweep(other, gpus=GPUS[:1], batch=[1, 2])
    assert found["total_s"].tolist()[2:] == alone["total_s"].tolist()
    models = rk.sweep({"b": nn.Linear(64, 8)}, rk.Input("batch", 64), gpus=GPUS[:1], batch=[1, 2])
    same(models.drop(columns="model"), alone)


# --- files -----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("small")
def test_parquet_csv_and_json_hold_the_rows(graph: rk.Graph, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    rows, keys = swept(graph), ["gpu", "execution", "batch"]
    folder = swept(graph, out=tmp_path / "s.parquet")
    assert folder == tmp_path / "s.parquet"
    back = pd.read_parquet(folder)
    same(back.sort_values(keys, ignore_index=True), rows.sort_values(keys, ignore_index=True))
    same(read_csv(swept(graph, out=tmp_path / "s.csv")), rows)
    records = json.loads(Path(swept(graph, out=str(tmp_path / "s.json"))).read_text())
    assert [record["batch"] for record in records] == rows["batch"].tolist()


def test_a_place_that_cannot_be_written_is_told_before_the_work(graph: rk.Graph, tmp_path: Path) -> None:
    for out, message in (
        (tmp_path / "none" / "s.csv", f"cannot be written: there is no folder {tmp_path / 'none'}"),
        (tmp_path, "is a folder; choose another name"),
    ):
        place = out if out.suffix else out / "folder.csv"
        place.mkdir() if out == tmp_path else None
        with refused(OutputError, f"{place}: {message}"):
            rk.sweep(graph, gpus=GPUS, batch=1, out=place)


def test_sizes_that_vary_together(graph: rk.Graph) -> None:
    two = rk.trace(nn.Linear(64, 128), rk.Input("batch", "seq", 64))
    found = rk.sweep(two, gpus=GPUS, batch=[1, 2, 4], seq=[512, 256, 128], zip=("batch", "seq"))
    assert found[["batch", "seq"]].to_numpy().tolist() == [[1, 512], [2, 256], [4, 128]] * 2
    every = rk.sweep(two, gpus=GPUS, batch=[1, 2, 4], seq=[512, 256, 128])
    same(found, every.merge(found[["gpu", "batch", "seq"]]))
    best = rk.search(two, gpus=GPUS, minimize="memory", batch=[1, 2, 4], seq=[512, 256, 1], zip=[("batch", "seq")]).best
    assert (best["batch"], best["seq"]) == (4, 1)


@pytest.mark.parametrize(
    ("together", "message"),
    [
        ("batch,seq", "zip: expected names of sizes, such as ('batch', 'seq'); got 'batch,seq'"),
        (("batch", "sec"), "zip: no size 'sec' is given; given are batch, seq; did you mean 'seq'?"),
        (("batch",), "zip: expected two or more sizes that vary together; got batch"),
        ([("batch", "seq"), ("seq", "batch")], "zip: 'batch' is there more than once"),
        (("batch", "seq"), "zip: sizes that vary together have as many values each; got batch 2, seq 3"),
    ],
)
def test_sizes_that_cannot_vary_together(together: Any, message: str) -> None:
    two = rk.trace(nn.Linear(64, 128), rk.Input("batch", "seq", 64))
    with refused(InputError, message):
        rk.sweep(two, gpus=GPUS, batch=[1, 2], seq=[1, 2, 3], zip=together)


def test_another_sweep_is_not_continued(graph: rk.Graph, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    out = tmp_path / "s.parquet"
    rk.sweep(graph, gpus=GPUS, batch=[1, 2], out=out)
    rk.sweep(graph, gpus=GPUS, batch=[1, 2], out=out)
    other = rk.trace(nn.Linear(64, 129), rk.Input("batch", 64), name="net")
    for call, differs in (
        (lambda: rk.sweep(graph, gpus=GPUS, batch=[1, 3], out=out), "sizes"),
        (lambda: rk.sweep(graph, gpus=GPUS[:1], batch=[1, 2], out=out), "gpu"),
        (lambda: rk.sweep(graph, gpus=GPUS, batch=[1, 2], memory=False, out=out), "columns"),
        (lambda: rk.sweep(other, gpus=GPUS, batch=[1, 2], execution="compiled", out=out), "model, execution"),
    ):
        with refused(
            OutputError,
            f"{out}: holds another sweep, which differs in {differs}: it is not continued; remove {out} to start anew, "
            "or choose another name",
        ):
            call()


def test_what_is_no_sweep_is_left_alone(graph: rk.Graph, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "s.parquet").mkdir()
    (tmp_path / "s.parquet" / "mine").write_text("x")
    (tmp_path / "f.parquet").write_text("x")
    for name in ("s.parquet", "f.parquet"):
        with pytest.raises(OutputError, match=f"{name}: is there already and is no sweep; move it elsewhere, or"):
            rk.sweep(graph, gpus=GPUS, batch=1, out=tmp_path / name)


def test_without_pyarrow(graph: rk.Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with refused(
        InputError,
        "parquet files need pyarrow, which is not installed: pip install 'rooflinekit[sweeps]', or write csv or json "
        "instead",
    ):
        rk.sweep(graph, gpus=GPUS, batch=1, out=tmp_path / "s.parquet")
    assert not (tmp_path / "s.parquet").exists()
    text = rk.sweep(graph, gpus=GPUS, batch=1, out=tmp_path / "s.csv").read_text()
    assert [line.split(",")[0] for line in text.splitlines()] == ["gpu", *GPUS]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers": 0}, "workers: expected a number of processes, 1 or more; got 0"),
        ({"workers": True}, "workers: expected a number of processes, 1 or more; got True"),
        ({"executor": 4}, "executor: expected a concurrent.futures.Executor; got 4"),
        ({"executor": 4, "workers": 2},
         "executor and workers: an executor has its own workers; give one of the two"),
        ({"out": "sweep.xlsx"}, "out: 'sweep.xlsx': expected a name that ends in .parquet, .csv or .json"),
        ({"execution": []}, "execution: expected one or more; got none"),
    ],
)  # fmt: skip
def test_wrong_use(graph: rk.Graph, options: dict[str, Any], message: str) -> None:
    with refused(RooflinekitError, message):
        rk.sweep(graph, gpus=GPUS, batch=1, **options)
