"""Which matrices are moved number by number."""

import pytest

import rooflinekit as rk
from rooflinekit.ir.cost import Cost
from rooflinekit.ir.op import DType, Family, Op, Phase, TensorSpec
from rooflinekit.kernels.eager import unaligned_accesses
from rooflinekit.kernels.rows import rows_of, softmax_accesses


def product(m: int, n: int, k: int, dtype: DType = DType.FLOAT16, stride: tuple[int, ...] | None = None) -> Op:
    shapes = {"a": (2, m, k), "b": (2, k, n), "c": (2, m, n)}
    made = {name: TensorSpec(name=name, shape=shape, dtype=dtype) for name, shape in shapes.items()}
    if stride is not None:
        made["b"] = TensorSpec(name="b", shape=shapes["b"], dtype=dtype, stride=stride)
    return Op(name="bmm", kind="aten.bmm", module="", phase=Phase.FORWARD, inputs=(made["a"], made["b"]),
              outputs=(made["c"],), attrs={})  # fmt: skip


@pytest.mark.parametrize(
    ("op", "pieces"),
    [
        (product(197, 64, 64), 0),  # 197 rows of 64
        (product(197, 197, 64, stride=(64 * 197, 1, 64)), 2 * 197 * 197),  # the scores; keys are read along their 64
        (product(197, 197, 64), 2 * (64 * 197 + 197 * 197)),  # keys that were written the other way round as well
        (product(196, 64, 196), 2 * 196 * 196 // 4),  # fours divide 196
        (product(50, 50, 64, stride=(64 * 50, 1, 64)), 2 * 50 * 50 // 2),
        (product(197, 197, 64, DType.FLOAT32), 0),  # 4 bytes at a time suit the CUDA cores
        (product(1, 64, 197, stride=(64 * 197, 1, 200)), 0),  # a vector, and rows that were padded
    ],
)
def test_numbers_that_rows_off_a_boundary_move_alone(op: Op, pieces: int) -> None:
    assert unaligned_accesses(op) == pieces


def softmax(rows: int, length: int, dtype: DType = DType.BFLOAT16, dim: int = -1) -> Op:
    x, y = (TensorSpec(name=name, shape=(rows, length), dtype=dtype) for name in "xy")
    return Op(name="softmax", kind="aten._softmax", module="", phase=Phase.FORWARD, inputs=(x,), outputs=(y,),
              attrs={"dim": dim})  # fmt: skip


@pytest.mark.parametrize(
    ("op", "singles"),
    [
        (softmax(10, 3137), 10 * 3137 * 3 * 7 // 8),  # no whole round of 8 × 1024 numbers
        (softmax(10, 8195), 10 * 3 * 3 * 7 // 8),  # one round, and 3 that are left
        (softmax(10, 3137, DType.FLOAT32), 10 * 3137 * 3 * 3 // 4),  # rounds of 4 × 1024
        (softmax(10, 3136), 0),  # aligned, and kept in shared memory
        (softmax(10, 32768), 0),  # too long for it: four whole rounds
        (softmax(10, 28680), 10 * 4104 * 3 * 7 // 8),  # too long as well: 3 × 8192, and 4104 that are left
        (softmax(10, 1021), 0),  # a warp's
        (softmax(3137, 3137, dim=0), 0),  # walked by a thread a column
    ],
)
def test_numbers_that_a_softmax_of_rows_off_a_boundary_loads_alone(op: Op, singles: int) -> None:
    assert softmax_accesses(rows_of(op, Cost()), op) == singles


def test_a_copy_beside_such_a_softmax_loads_none_alone() -> None:
    graph = rk.trace(lambda x: x.transpose(1, 2).softmax(-1), rk.Input(2, 3137, 512, dtype="bfloat16"))
    copy, softmax = (timing.kernel for timing in rk.predict(graph, "nvidia-a100-sxm4-80gb").timings)
    assert copy.family is Family.MOVEMENT
    assert copy.accesses == 0
    assert softmax.accesses > 0
