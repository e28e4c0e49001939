"""Matrix products.

A complex product is the real one of [m, 2k] with [2k, 2n]: a complex multiply-add is four real ones.
"""

from __future__ import annotations

from rooflinekit.cost.table import reads, rule, traffic, writes
from rooflinekit.ir.cost import Cost, Gemm
from rooflinekit.ir.op import Op
from rooflinekit.ir.sizes import Size, product
from rooflinekit.ir.tensor import TensorSpec


def gemm_of(a: TensorSpec, *, batch: Size = 1, m: Size, n: Size, k: Size) -> Gemm:
    """The product of `a` with another matrix."""
    parts = 2 if a.dtype.is_complex else 1
    return Gemm(batch=batch, m=m, n=product((parts, n)), k=product((parts, k)))


def _plus(op: Op) -> Cost:
    """Traffic of beta·input + alpha·product, an addition an output element, and a multiplication by each factor that
    is not 1. With beta = 0 the input is not read.
    """
    (y,) = op.outputs
    beta, alpha = op.attrs.get("beta", 1), op.attrs.get("alpha", 1)
    operations = (beta not in (0, 1)) + (beta != 0) + (alpha != 1)
    used = op.inputs[1:] if beta == 0 else op.inputs
    return Cost(vector_flop=product((operations, y.numel))) + reads(used) + writes((y,))


@rule("aten.mm", "aten._int_mm")
def mm(op: Op) -> Cost:
    """[m, k] × [k, n]: 2·m·k·n."""
    a, b = op.inputs
    m, k = a.shape
    return Cost(gemms=(gemm_of(a, m=m, n=b.shape[1], k=k),)) + traffic(op)


def _product_plus(op: Op) -> Cost:
    _, a, b = op.inputs
    m, k = a.shape
    return Cost(gemms=(gemm_of(a, m=m, n=b.shape[1], k=k),)) + _plus(op)


@rule("aten.addmm")
def addmm(op: Op) -> Cost:
    """[m, k] × [k, n] plus a bias in the same kernel: 2·m·k·n, and 1 an output element."""
    return _product_plus(op)


@rule("aten.bmm")
def bmm(op: Op) -> Cost:
    """[b, m, k] × [b, k, n]: 2·b·m·k·n."""
    a, b = op.inputs
    batch, m, k = a.shape
    return Cost(gemms=(gemm_of(a, batch=batch, m=m, n=b.shape[2], k=k),)) + traffic(op)


@rule("aten.baddbmm")
def baddbmm(op: Op) -> Cost:
    """[b, m, k] × [b, k, n] plus a matrix in the same kernel: 2·b·m·k·n, and 1 an output element."""
    _, a, b = op.inputs
    batch, m, k = a.shape
    return Cost(gemms=(gemm_of(a, batch=batch, m=m, n=b.shape[2], k=k),)) + _plus(op)


@rule("aten.mv")
def mv(op: Op) -> Cost:
    """[m, k] × [k]: 2·m·k."""
    a, _ = op.inputs
    m, k = a.shape
    return Cost(gemms=(gemm_of(a, m=m, n=1, k=k),)) + traffic(op)


@rule("aten.dot", "aten.vdot")
def dot(op: Op) -> Cost:
    """[k] · [k]: 2·k."""
    a, _ = op.inputs
    return Cost(gemms=(gemm_of(a, m=1, n=1, k=a.numel),)) + traffic(op)


@rule("aten.addmv")
def addmv(op: Op) -> Cost:
    """[m, k] × [k] plus a vector in the same kernel: 2·m·k, and 1 an output element."""
    _, a, _ = op.inputs
    m, k = a.shape
    return Cost(gemms=(gemm_of(a, m=m, n=1, k=k),)) + _plus(op)


@rule("aten.addr")
def addr(op: Op) -> Cost:
    """A matrix plus the outer product of two vectors, which is one multiplication an element."""
    return Cost(vector_flop=op.outputs[0].numel) + _plus(op)


@rule("aten.addbmm")
def addbmm(op: Op) -> Cost:
    """The sum of b products [m, k] × [k, n], plus a matrix: 2·b·m·k·n, and 1 an output element."""
    _, a, b = op.inputs
    batch, m, k = a.shape
    return Cost(gemms=(gemm_of(a, batch=batch, m=m, n=b.shape[2], k=k),)) + _plus(op)


@rule("aten._addmm_activation")
def addmm_activation(op: Op) -> Cost:
    """A product plus a bias, and its ReLU (1 comparison) or GELU in the tanh form (8 and tanh)."""
    n = op.outputs[0].numel
    gelu = bool(op.attrs.get("use_gelu"))
    return _product_plus(op) + Cost(vector_flop=product((8 if gelu else 1, n)), special_flop=n if gelu else 0)


@rule("aten._grouped_mm")
def grouped_mm(op: Op) -> Cost:
    """2·m·k·n of all groups together: offsets split the rows, the columns or the contraction of one product.

    [rows, k] × [g, k, n], [g, m, k] × [k, columns], [m, k] × [k, n] in g parts of k; [g, m, k] × [g, k, n] is a batch.
    """
    a, b = op.inputs[:2]
    batch = a.shape[0] if len(a.shape) == len(b.shape) == 3 else 1
    m, k, n = a.shape[-2], a.shape[-1], b.shape[-1]
    (y,) = op.outputs
    biased = y.numel if op.attrs.get("bias") is not None else 0
    return Cost(gemms=(gemm_of(a, batch=batch, m=m, n=n, k=k),), vector_flop=biased) + traffic(op)


@rule("aten._trilinear")
def trilinear(op: Op) -> list[Cost]:
    """Σ a·w·b, as in a bilinear layer: 2·rows·o·(i·j + j), for each output feature [rows, i] × [i, j], then over j.

    A layer with i and j inputs and o outputs takes o·(i·j + j) multiply-adds a row. In general the first two factors
    are contracted over the dimensions that the third lacks, then with it over the others; without a dimension to
    contract, the first step is a multiplication. The result between them is written and read.
    """
    factors = [_dimensions(t, op.attrs[f"expand{i}"]) for i, t in enumerate(op.inputs, 1)]
    summed, unrolled = set(op.attrs["sumdim"]), op.attrs["unroll_dim"]
    sizes = {d: size for factor in factors for d, size in factor.items()}
    first, second, third = map(set, factors)
    inner = {d for d in summed if d not in third}
    between = ((first | second) - inner) | {unrolled}  # one output feature after the other

    def contraction(left: set[int], right: set[int], over: set[int]) -> Gemm:
        def span(dims: set[int]) -> Size:
            return product(sizes[d] for d in sorted(dims))

        batch = (left & right) - over | ({unrolled} - over - left - right)
        m, n = left - right - over, right - left - over
        return gemm_of(op.inputs[0], batch=span(batch), m=span(m), n=span(n), k=span(over))

    kept = Cost(write_bytes=product((*(sizes[d] for d in between), op.inputs[0].dtype.itemsize)))
    step = contraction(first, second, inner)
    work = Cost(gemms=(step,)) if inner else Cost(vector_flop=step.multiply_adds)
    rest = Cost(gemms=(contraction(between, third, summed - inner),), read_bytes=kept.write_bytes)
    return [
        Cost(label="first") + work + kept + reads(op.inputs[:2]),
        Cost(label="second") + rest + reads(op.inputs[2:]) + writes(op.outputs),
    ]


def _dimensions(tensor: TensorSpec, expanded: tuple[int, ...]) -> dict[int, Size]:
    """Sizes by dimension of the space in which the tensor lacks the `expanded` ones."""
    places = (d for d in range(len(tensor.shape) + len(expanded)) if d not in expanded)
    return dict(zip(places, tensor.shape, strict=True))
