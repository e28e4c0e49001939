"""Many predictions at once: the same as one by one, and hand-made times for ops in a table."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from refusals import refused
from torch import nn

import rooflinekit as rk
from rooflinekit.calibrate.campaigns.operators import OPS
from rooflinekit.errors import FormatError, InputError, RooflinekitError, SizeError
from rooflinekit.hardware.device import Device
from rooflinekit.study.sweep.points import sweep_table
from rooflinekit.timing.machine import Machine

GPUS = ["nvidia-l4", "nvidia-a100-sxm4-80gb"]


@pytest.fixture(scope="module")
def graph() -> rk.Graph:
    return rk.trace(nn.Linear(512, 256), rk.Input("batch", "seq", 512))


# --- a workload -------------------------------------------------------------------------------------------------------


def test_a_row_a_gpu_and_combination(graph: rk.Graph) -> None:
    found = rk.sweep(graph, gpus=GPUS, batch=[1, 64], seq=range(100, 103))
    assert list(found.columns) == [
        *("gpu", "batch", "seq", "total_s", "low_s", "high_s", "gpu_s", "cpu_s", "regime", "energy_j", "power_w"),
        *("throughput", "fits"),
        *("peak_bytes", "problem"),
    ]
    assert found["problem"].eq("").all()
    sizes = [(1, 100), (1, 101), (1, 102), (64, 100), (64, 101), (64, 102)]
    assert list(found[["gpu", "batch", "seq"]].itertuples(index=False, name=None)) == [
        (gpu, *pair) for gpu in GPUS for pair in sizes
    ]
    for row in found.itertuples(index=False):
        alone = rk.predict(nn.Linear(512, 256), rk.Input(row.batch, row.seq, 512), gpu=row.gpu)
        assert row.total_s == pytest.approx(alone.total_s, rel=1e-12)
        # Weight and bias, input, output, each in 4 bytes; cuBLAS's 2 · 4 MiB and 8 · 16 KiB.
        assert row.peak_bytes == 4 * (256 * 512 + 256 + row.batch * row.seq * (512 + 256)) + 8_519_680


def test_numbers_arrays_and_what_does_not_fit(graph: rk.Graph) -> None:
    found = rk.sweep(graph, gpus=["nvidia-l4"], batch=7, seq=np.array([100, 10**7]))
    assert found["batch"].tolist() == [7, 7]
    # 7·10⁷·(512 + 256)·4 bytes = 215 GB, of the L4's 24
    assert found["fits"].tolist() == [True, False]


def test_no_throughput_without_a_batch() -> None:
    graph = rk.trace(nn.ReLU(), rk.Input("tokens", 64))
    found = rk.sweep(graph, gpus=["nvidia-l4"], tokens=[1, 2])
    assert "throughput" not in found
    assert len(rk.sweep(graph.at(tokens=3), gpus=GPUS)) == 2  # nothing is open: a row a GPU


def test_a_model_host_and_execution() -> None:
    loop = rk.Execution(sync="none")
    model, shape = nn.Linear(64, 64), ("batch", 64)
    found = rk.sweep(
        model, rk.Input(*shape), gpus=["nvidia-l4"], host="xeon-server-2018", execution=loop, dtype="float16", batch=[8]
    )
    alone = rk.predict(
        model, rk.Input(8, 64), gpu="nvidia-l4", host="xeon-server-2018", execution=loop, dtype="float16"
    )
    assert found["total_s"].tolist() == pytest.approx([alone.total_s], rel=1e-12)
    training = rk.sweep(model, rk.Input(*shape), gpus=["nvidia-l4"], mode="training", batch=[8])
    assert training["gpu_s"][0] > 2 * rk.sweep(model, rk.Input(*shape), gpus=["nvidia-l4"], batch=[8])["gpu_s"][0]


@pytest.mark.parametrize(
    ("kind", "call", "message"),
    [
        (SizeError, {"batch": [1]}, "no number is given for size 'seq': add seq=… (--seq … on the command line)"),
        (SizeError, {"batch": [], "seq": 1}, "size 'batch': expected a positive integer or a list of them; got []"),
        (SizeError, {"batch": [1, 0], "seq": 1}, "size 'batch': expected a positive integer; got 0"),
        (SizeError, {"batch": "8", "seq": 1}, "size 'batch': expected a positive integer; got '8'"),
        (SizeError, {"bacth": [1], "seq": 1},
         "no size is named 'bacth' in this workload: it has 'batch', 'seq'; did you mean 'batch'?"),
        (InputError, {"batch": 1, "seq": 1, "gpus": []}, "gpus: expected a list of names, paths or Devices; got []"),
        (InputError, {"batch": 1, "seq": 1, "gpus": "nvidia-l4"},
         "gpus: expected a list of names, paths or Devices; got 'nvidia-l4'"),
        (InputError, {"batch": 1, "seq": 1, "gpus": ["nvidia-l4", "NVIDIA L4"]}, "gpus: 'nvidia-l4' is given twice"),
        (InputError, {"batch": 1, "seq": 1, "gpus": [4]}, "gpu: expected a name, a path or a Device; got 4"),
    ],
)  # fmt: skip
def test_wrong_sizes_and_gpus(
    graph: rk.Graph, kind: type[RooflinekitError], call: dict[str, Any], message: str
) -> None:
    with refused(kind, message):
        rk.sweep(graph, **{"gpus": GPUS, **call})


def test_wrong_inputs(graph: rk.Graph) -> None:
    with pytest.raises(InputError, match=r"^a Graph has its inputs already; got 1 more$"):
        rk.sweep(graph, rk.Input(3), gpus=GPUS, batch=1, seq=1)
    with pytest.raises(InputError, match=r"^a table of ops has its sizes in columns; got batch$"):
        rk.sweep(pd.DataFrame({"op": ["add"]}), gpus=GPUS, batch=1)


# --- a table of ops ---------------------------------------------------------------------------------------------------


def table(**columns: list[Any]) -> pd.DataFrame:
    return pd.DataFrame(columns)


def test_seconds_by_hand(machine: Machine) -> None:
    # 1 TB/s; 100 TFLOP/s in fp16 and 10 in fp32, on 50 SMs; nothing is lost and starts take no time.
    ops = table(
        op=["add", "mm", "relu", "mm", "bmm"],
        dtype=["fp32", "fp16", "fp16", "fp32", "fp16"],
        rows=[10**4, None, 10**5, None, None],
        cols=[10**4, None, 10**4, None, None],
        m=[None, 1280, None, 1280, 128],
        n=[None, 640, None, 640, 128],
        k=[None, 8192, None, 8192, 8192],
        b=[None, None, None, None, 50],
    )
    ops.index = [7, 7, 1, 0, 3]  # whatever it is, it stays
    found = sweep_table(ops, [machine])
    pd.testing.assert_frame_equal(found[ops.columns], ops)
    assert found["round-gpu"].tolist() == pytest.approx(
        [
            12 * 10**8 / 1e12,  # 2 reads and 1 write of 4 bytes
            2 * 1280 * 640 * 8192 / 100e12,  # 10 × 5 tiles of 128², one an SM
            4 * 10**9 / 1e12,  # 1 read and 1 write of 2 bytes
            2 * 1280 * 640 * 8192 / 10e12,
            50 * 2 * (2 * 128 * 8192 + 128 * 128) / 1e12,  # 211 MB take longer than 134 µs of arithmetic
        ],
        rel=1e-3,
    )


def test_each_machine_has_a_column_and_the_table_is_left_alone() -> None:
    ops = table(op=["add", "softmax"], dtype=["fp32", "fp16"], rows=[4096, 4096], cols=[4096, 4096])
    before = ops.copy()
    found = rk.sweep(ops, gpus=GPUS)
    pd.testing.assert_frame_equal(ops, before)
    assert list(found.columns) == [*ops.columns, *GPUS]
    # 201 MB at 300 GB/s and 2.04 TB/s, of which streams sustain 80 to 95 %
    least = [3 * 4 * 4096**2 / 300e9, 3 * 4 * 4096**2 / 2.039e12]
    for gpu, ideal in zip(GPUS, least, strict=True):
        assert ideal / 0.95 < found[gpu][0] < ideal / 0.75


def test_an_empty_table() -> None:
    found = rk.sweep(table(op=[], dtype=[], rows=[], cols=[]), gpus=GPUS)
    assert (list(found.columns), len(found)) == (["op", "dtype", "rows", "cols", *GPUS], 0)


def test_a_row_among_a_hundred_thousand_is_what_it_is_alone() -> None:
    count = np.arange(100_000)
    ops = pd.DataFrame(
        {"op": "mm", "dtype": "bf16", "m": 1 + count % 8000, "n": 1 + count * 7 % 8000, "k": 1 + count * 13 % 8000}
    )
    few = ops.iloc[::9999]
    found, alone = (rk.sweep(rows, gpus=["nvidia-h100-sxm5-80gb"]) for rows in (ops, few))
    assert found.loc[few.index, "nvidia-h100-sxm5-80gb"].tolist() == alone["nvidia-h100-sxm5-80gb"].tolist()


def test_every_op_that_is_counted_has_its_sizes_listed() -> None:
    for op, sizes in OPS.items():
        row = {"op": op, "dtype": "fp16", **dict.fromkeys(sizes.needed, 8)}
        needed = rk.sweep(pd.DataFrame([row]), gpus=["nvidia-b200-sxm-180gb"])
        every = rk.sweep(pd.DataFrame([row | dict.fromkeys(sizes.optional, 1)]), gpus=["nvidia-b200-sxm-180gb"])
        assert needed["nvidia-b200-sxm-180gb"][0] > 0
        assert every["nvidia-b200-sxm-180gb"][0] > 0


KNOWN_OPS = ", ".join(OPS)


@pytest.mark.parametrize(
    ("ops", "message"),
    [
        ({"dtype": ["fp16"]}, "the table has no column 'op': expected op, dtype and the sizes of the ops"),
        ({"op": ["mm"]}, "the table has no column 'dtype': expected op, dtype and the sizes of the ops"),
        ({"op": ["mm", "softmx"], "dtype": ["fp16"] * 2},
         f"row 1: op 'softmx' is not one that can be timed; did you mean 'softmax'? (known: {KNOWN_OPS})"),
        ({"op": ["mm", None], "dtype": ["fp16"] * 2}, f"row 1: op is missing (known: {KNOWN_OPS})"),
        ({"op": ["mm"], "dtype": ["fp12"]},
         "row 0: dtype 'fp12' is not one that can be timed; did you mean 'fp32' or 'fp16' or 'fp8'? "
         "(known: fp64, fp32, tf32, fp16, bf16, fp8, int8)"),
        ({"op": ["mm"], "dtype": ["fp16"], "m": [1], "n": [2]},
         "the table has no column 'k': mm has the sizes m, n, k"),
        ({"op": ["mm", "add"], "dtype": ["fp16"] * 2, "m": [1, 2], "n": [1, 2], "k": [1, 2]},
         "the table has no column 'rows': add has the sizes rows, cols"),
        ({"op": ["mm"] * 2, "dtype": ["fp16"] * 2, "m": [1, 2], "n": [1, 2], "k": [1, None]},
         "row 1: k of mm: expected a positive integer; got nan"),
        ({"op": ["add"], "dtype": ["fp16"], "rows": [0], "cols": [1]},
         "row 0: rows of add: expected a positive integer; got 0"),
        ({"op": ["add"], "dtype": ["fp16"], "rows": [1.5], "cols": [1]},
         "row 0: rows of add: expected a positive integer; got 1.5"),
        ({"op": ["add"], "dtype": ["fp16"], "rows": ["many"], "cols": [1]},
         "row 0: rows of add: expected a positive integer; got 'many'"),
        ({"op": ["mm"], "dtype": ["fp16"], "m": [1], "n": [2], "k": [3], "b": [-1]},
         "row 0: b of mm: expected a positive integer; got -1"),
        ({"op": ["add"], "dtype": ["fp16"], "rows": [1], "cols": [1], "nvidia-l4": [0]},
         "the table has a column 'nvidia-l4' already; drop or rename it"),
    ],
)  # fmt: skip
def test_wrong_tables(ops: dict[str, list[Any]], message: str) -> None:
    with refused(InputError, message):
        rk.sweep(pd.DataFrame(ops), gpus=GPUS)


def test_arithmetic_that_a_machine_does_not_have(device: Device) -> None:
    ops = table(op=["mm"], dtype=["fp8"], m=[16], n=[16], k=[16])
    with refused(
        FormatError, "round-gpu has no fp8 arithmetic (it has fp16, fp32, fp64); choose another format or device"
    ):
        rk.sweep(ops, gpus=[device])
