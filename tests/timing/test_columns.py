"""Kernel records → columns: every count where it belongs, in the order of the kernels."""

from rooflinekit.ir.cost import Cost, Gemm
from rooflinekit.ir.op import Family, Math, Phase
from rooflinekit.kernels import cudnn
from rooflinekit.kernels.algorithms import PRODUCT
from rooflinekit.kernels.kernel import Kernel, Reuse
from rooflinekit.kernels.rows import Rows
from rooflinekit.timing.kernel_batch import work_of


def kernel(family: Family = Family.ELEMENTWISE, cost: Cost = Cost(), **fields: object) -> Kernel:  # noqa: B008
    defaults = {"math": Math.FP32, "algorithm": PRODUCT}
    return Kernel(
        name="k", kind="test.k", family=family, module="", phase=Phase.FORWARD, cost=cost, **(defaults | fields)
    )


def product(family: Family = Family.MATMUL, **fields: object) -> Kernel:
    return kernel(family, Cost(gemms=(Gemm(m=3, n=5, k=7),)), **fields)


def test_no_kernels() -> None:
    assert len(work_of([])) == 0


def test_each_count_in_its_column() -> None:
    cost = Cost(vector_flop=1, special_flop=2, read_bytes=3, write_bytes=4)
    rows = Rows(count=10, length=20, passes=3, held_bytes=40, threads=50)
    work = work_of([kernel(), kernel(cost=cost, rows=rows, math=Math.FP64, algorithm=cudnn.FEW_CHANNELS)])
    columns = ("vector_flop", "special_flop", "read_bytes", "write_bytes")
    assert [getattr(work, name).tolist() for name in columns] == [[0, 1], [0, 2], [0, 3], [0, 4]]
    # no rows are read once by one warp
    columns = ("rows", "columns", "passes", "row_bytes", "threads")
    assert [getattr(work, name).tolist() for name in columns] == [[0, 10], [0, 20], [1, 3], [0, 40], [0, 50]]
    assert [work.math[i] for i in work.arithmetic] == [Math.FP32, Math.FP64]
    assert work.tensor_core.tolist() == [True, False]


def test_products_know_their_kernel() -> None:
    two = kernel(Family.MATMUL, Cost(gemms=(Gemm(batch=2, m=3, n=4, k=5), Gemm(m=6, n=7, k=8))))
    work = work_of([kernel(), two, product()])
    found = work.products
    assert found.kernel.tolist() == [1, 1, 2]
    assert [found.batch.tolist(), found.m.tolist()] == [[2, 1, 1], [3, 6, 3]]
    assert [found.n.tolist(), found.k.tolist()] == [[4, 7, 5], [5, 8, 7]]


def test_a_mask_leaves_out_part_of_a_product() -> None:
    # 10 of 4·4 pairs, of 8 multiply-adds each
    masked = kernel(Family.ATTENTION, Cost(gemms=(Gemm(m=4, n=4, k=8, needed=80), Gemm(m=4, n=8, k=4))))
    work = work_of([masked])
    assert work.products.executed.tolist() == [0.625, 1.0]
    assert work.products.flop.tolist() == [160.0, 256.0]


def test_a_product_of_nothing() -> None:
    empty = kernel(Family.MATMUL, Cost(gemms=(Gemm(m=0, n=4, k=8, needed=0),)))
    assert work_of([empty]).products.executed.tolist() == [1.0]


def test_each_product_has_its_algorithm() -> None:
    given = [PRODUCT, cudnn.FORWARD, PRODUCT, cudnn.FUSED_WINOGRAD]
    products = work_of([product(algorithm=one) for one in given], 2).products
    assert [products.algorithms[i] for i in products.algorithm] == [one for one in given for _ in range(2)]
    assert products.algorithms == tuple(dict.fromkeys(given))


def test_what_is_found_in_the_cache_knows_its_kernel() -> None:
    found = (Reuse(bytes=100, distance=7), Reuse(bytes=200, distance=0))
    work = work_of([kernel(), kernel(recent=found), kernel(recent=found[:1])])
    assert work.recent.kernel.tolist() == [1, 1, 2]
    assert work.recent.bytes.tolist() == [100, 200, 100]
    assert work.recent.distance.tolist() == [7, 0, 7]
