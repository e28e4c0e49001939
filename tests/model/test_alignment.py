"""Which matrices are moved number by number."""

import pytest

from rooflinekit.ir.op import Op, Phase
from rooflinekit.ir.tensor import DType, TensorSpec
from rooflinekit.model.alignment import unaligned_accesses


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
        (product(197, 197, 64, DType.FLOAT32), 0),  # 4 bytes at a time suit the lanes
        (product(1, 64, 197, stride=(64 * 197, 1, 200)), 0),  # a vector, and rows that were padded
    ],
)
def test_numbers_that_rows_off_a_boundary_move_alone(op: Op, pieces: int) -> None:
    assert unaligned_accesses(op) == int(1.3 * pieces)
