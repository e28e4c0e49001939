"""The same step in other ways: a row is a prediction, and what is removed adds up."""

import pickle

import pytest
import torch
from refusals import refusal
from torch import nn

import rooflinekit as rk
from rooflinekit.errors import InputError, SizeError
from rooflinekit.ir.graph import Origin, opened, resized, traced_with


def net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 8, 3))


IMAGE = rk.Input("batch", 3, 32, 32)
GPU = "nvidia-rtx-4090"


@pytest.fixture(scope="module")
def graph() -> rk.Graph:
    return rk.trace(net(), IMAGE)


def test_each_row_is_the_direct_prediction(graph: rk.Graph) -> None:
    table = rk.predict(graph, GPU, batch=8).compare(
        execution=["eager", "compiled"], autocast=[None, "bf16"], channels_last=[False, True], batch=[8, 32]
    )
    assert len(table) == 16
    for row in table.itertuples():
        autocast = None if row.autocast == "none" else row.autocast
        traced = rk.trace(net(), IMAGE, autocast=autocast, channels_last=row.channels_last)
        direct = rk.predict(traced, GPU, batch=row.batch, execution=row.execution)
        assert row.total_s == direct.total_s
        assert (row.gpu_s, row.cpu_s, row.peak_bytes) == (direct.gpu_s, direct.cpu_s, direct.memory.peak_bytes)
        assert row.throughput == row.batch / direct.total_s


def test_what_is_removed_and_what_is_left_are_what_there_was(graph: rk.Graph) -> None:
    p = rk.predict(graph, GPU, batch=8)
    table = p.compare(execution=["compiled", "cuda-graph"], autocast="float16")
    first = table.iloc[0]
    assert first["speedup"] == 1
    assert not first.filter(like="removed_").any()
    assert first["total_s"] == p.total_s
    for _, row in table.iterrows():
        q = row["prediction"]
        assert row["removed_kernels"] + len(q.timings) == len(p.timings)
        assert row["removed_gpu_s"] + q.gpu_s == pytest.approx(p.gpu_s)
        assert row["speedup"] == p.total_s / q.total_s
    replayed = table[table["execution"] == "cuda-graph"].iloc[0]
    assert replayed["removed_casts"] == -5  # the image, two weights and two biases


def test_other_batches_are_compared_for_as_many_samples(graph: rk.Graph) -> None:
    p = rk.predict(graph, GPU, batch=8)
    row = p.compare(batch=32).iloc[1]
    q = row["prediction"]
    assert row["speedup"] == pytest.approx(4 * p.total_s / q.total_s)
    assert row["removed_cpu_s"] == pytest.approx(p.cpu_s - q.cpu_s / 4)
    assert row["removed_peak_bytes"] == p.memory.peak_bytes - q.memory.peak_bytes


def test_a_model_predicted_at_numbers_can_be_compared_at_others() -> None:
    p = rk.predict(net(), IMAGE, gpu=GPU, batch=8)
    row = p.compare(batch=16).iloc[1]
    assert row["total_s"] == pytest.approx(rk.predict(net(), IMAGE, gpu=GPU, batch=16).total_s)


def test_a_training_step_is_traced_again_with_all_its_options() -> None:
    options = {"mode": "training", "optimizer": torch.optim.AdamW, "tf32": True, "like": "1.13"}
    p = rk.predict(rk.trace(net(), IMAGE, **options), GPU, batch=8)
    row = p.compare(autocast="fp16").iloc[1]
    direct = rk.predict(rk.trace(net(), IMAGE, autocast="fp16", **options), GPU, batch=8)
    assert row["total_s"] == direct.total_s


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {},
            "compare: name what differs, such as execution=['eager', 'compiled']: execution, autocast, channels_last, "
            "attention",
        ),
        (
            {"bach": 3},
            "compare: expected execution, autocast, channels_last, attention, batch; got 'bach'; did you mean 'batch'?",
        ),
        ({"autocast": "fp8"}, "autocast: expected 'float16' ('fp16'), 'bfloat16' ('bf16') or None; got 'fp8'"),
        ({"channels_last": "yes"}, "channels_last: expected True or False; got 'yes'"),
        ({"batch": []}, "compare: batch: expected a value or a list of them; got []"),
    ],
)
def test_wrong_variants_are_refused(graph: rk.Graph, given: dict[str, object], message: str) -> None:
    assert refusal(InputError, rk.predict(graph, GPU, batch=8).compare, **given) == message


def test_a_graph_without_its_model_says_so(graph: rk.Graph) -> None:
    assert pickle.loads(pickle.dumps(Origin(trace=lambda: graph))).trace is None
    alone = rk.Graph(name="alone", mode="inference", inputs=(), weights=(), outputs=(), priced=(), dims=("n",))
    assert resized(alone.at(n=3), n=4).sizes == {"n": 4}
    assert refusal(InputError, traced_with, alone.at(n=3), autocast="float16") == (
        "alone: autocast='float16' takes tracing again, and this graph does not know its model (it was not made by "
        "trace, or came from a file or another process); trace the model with these options"
    )


def test_the_whole_graph_is_found_again(graph: rk.Graph) -> None:
    assert resized(graph.at(batch=3), batch=5).sizes == {"batch": 5}
    assert traced_with(graph.at(batch=3), autocast=None) is graph
    assert traced_with(graph.at(batch=3), channels_last=True).dims == ("batch",)
    fixed = rk.trace(net(), IMAGE, sizes={"batch": 4}, fixed=True)
    assert opened(fixed, "batch")[0].dims == ("batch",)
    with pytest.raises(SizeError, match="no size is named 'bach' in this workload: it has 'batch'"):
        opened(fixed, "bach")
