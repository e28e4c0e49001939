"""Matrix products.

A complex product is the real one of [m, 2k] with [2k, 2n]: a complex multiply-add is four real ones.
"""

from __future__ import annotations

from collections.abc import Sequence

from rooflinekit.cost.table import family, free, per_input, per_output, reads, rule, traffic, work, writes
from rooflinekit.ir.cost import Cost, Gemm
from rooflinekit.ir.op import Family, Op, TensorSpec
from rooflinekit.ir.sizes import Size, floor_div, product, smaller, total


def gemm_of(a: TensorSpec, *, batch: Size = 1, m: Size, n: Size, k: Size) -> Gemm:
    """The product of `a` with another matrix."""
    parts = 2 if a.dtype.is_complex else 1
    return Gemm(batch=batch, m=m, n=product((parts, n)), k=product((parts, k)))


def _factors(op: Op, y: TensorSpec) -> Cost:
    """beta·input + alpha·product: an addition an output element, and a multiplication by each factor that is not 1."""
    beta, alpha = op.attrs.get("beta", 1), op.attrs.get("alpha", 1)
    return work(y.numel, (beta not in (0, 1)) + (beta != 0) + (alpha != 1))


def _used(op: Op, added: int = 1) -> Sequence[TensorSpec]:
    """What is read: with beta = 0 not the first inputs, which are added."""
    return op.inputs[added:] if op.attrs.get("beta", 1) == 0 else op.inputs


def _biased(op: Op) -> int:
    return int(op.attrs.get("bias") is not None)


def _matrix_product(op: Op) -> Cost:
    """The product of the last two inputs (matrices, batches or vectors), plus the first of three in the same kernel."""
    *added, a, b = op.inputs
    batch = a.shape[0] if len(a.shape) == 3 else 1
    m, k = a.shape[-2:] if len(a.shape) > 1 else (1, a.numel)
    n = b.shape[-1] if len(b.shape) > 1 else 1
    (y,) = op.outputs
    gemm = Cost(gemms=(gemm_of(a, batch=batch, m=m, n=n, k=k),))
    return gemm + (_factors(op, y) if added else Cost()) + reads(_used(op, len(added))) + writes((y,))


family(
    _matrix_product,
    {
        "mm _int_mm": ("[m, k] × [k, n]: 2·m·k·n.",),
        "addmm": ("[m, k] × [k, n] plus a bias in the same kernel: 2·m·k·n, and 1 an output element.",),
        "bmm": ("[b, m, k] × [b, k, n]: 2·b·m·k·n.",),
        "baddbmm": ("[b, m, k] × [b, k, n] plus a matrix in the same kernel: 2·b·m·k·n, and 1 an output element.",),
        "mv": ("[m, k] × [k]: 2·m·k.",),
        "dot vdot": ("[k] · [k]: 2·k.",),
        "addmv": ("[m, k] × [k] plus a vector in the same kernel: 2·m·k, and 1 an output element.",),
        "addbmm": ("The sum of b products [m, k] × [k, n], plus a matrix: 2·b·m·k·n, and 1 an output element.",),
    },
)


@rule("aten.addr")
def addr(op: Op) -> Cost:
    """A matrix plus the outer product of two vectors, which is one multiplication an element."""
    (y,) = op.outputs
    return work(y.numel, 1) + _factors(op, y) + reads(_used(op)) + writes((y,))


@rule("aten._addmm_activation")
def addmm_activation(op: Op) -> Cost:
    """A product plus a bias, and its ReLU (1 comparison) or GELU in the tanh form (8 and tanh)."""
    activated = (8, 1) if op.attrs.get("use_gelu") else (1, 0)
    return _matrix_product(op) + work(op.outputs[0].numel, *activated)


def _scaled(op: Op, scales: int) -> Cost:
    a, b = op.inputs[:2]
    batch = a.shape[0] if len(a.shape) == len(b.shape) == 3 else 1
    gemm = gemm_of(a, batch=batch, m=a.shape[-2], n=b.shape[-1], k=a.shape[-1])
    return Cost(gemms=(gemm,)) + per_output(op, scales + _biased(op))


# Groups: [rows, k] × [g, k, n], [g, m, k] × [k, columns], [m, k] × [k, n] in g parts of k; [g, m, k] × [g, k, n] is a
# batch.
_GROUPS = "2·m·k·n of all groups together"
family(
    _scaled,
    {
        "_grouped_mm": (0, f"{_GROUPS}: offsets split the rows, the columns or the contraction of one product."),
        "_scaled_grouped_mm": (1, f"{_GROUPS}, as in `_grouped_mm`; a scale 1 an output element."),
        "_scaled_mm": (1, "[m, k] × [k, n] of 8-bit numbers: 2·m·k·n; scales 1 an output element, a bias 1."),
    },
)


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
    done = Cost(gemms=(step,)) if inner else Cost(vector_flop=step.multiply_adds)
    rest = Cost(gemms=(contraction(between, third, summed - inner),), read_bytes=kept.write_bytes)
    return [
        Cost(label="first") + done + kept + reads(op.inputs[:2]),
        Cost(label="second") + rest + reads(op.inputs[2:]) + writes(op.outputs),
    ]


def _dimensions(tensor: TensorSpec, expanded: tuple[int, ...]) -> dict[int, Size]:
    """Sizes by dimension of the space in which the tensor lacks the `expanded` ones."""
    places = (d for d in range(len(tensor.shape) + len(expanded)) if d not in expanded)
    return dict(zip(places, tensor.shape, strict=True))


# Products and conversions of quantized numbers. Packed weights are read at their packed size.
#
# Quantizing a number: times 1/scale, rounded, plus the zero point, two comparisons: 5. Back: minus the zero point,
# times the scale: 2.


_QUANTIZE, _DEQUANTIZE = 5, 2


def _activation(op: Op) -> tuple[int, int]:
    """Vector FLOP and special functions an element of the activation in a product: ReLU 1, x·sigmoid(x) 3 and 2."""
    return {"relu": (1, 0), "silu": (3, 2)}.get(op.attrs.get("activation") or "none", (0, 0))


def _linear(op: Op) -> Gemm:
    """[rows, k] × [k, n], by input and output: a packed weight does not show its shape."""
    y = op.outputs[0]
    n = y.shape[-1]
    return Gemm(m=floor_div(y.numel, n), n=n, k=op.inputs[0].shape[-1])


def _scaled_after(op: Op, scales: int) -> Cost:
    vector, special = _activation(op)
    return Cost(gemms=(_linear(op),)) + per_output(op, scales + _biased(op) + vector, special)


_OF_EIGHT_BITS = (
    "[m, k] × a weight of 8-bit integers [n, k]: 2·m·k·n; where rows and columns are scaled 2 an output, bias 1."
)
family(
    _scaled_after,
    {
        "_weight_int8pack_mm _mixed_dtypes_linear": (
            1, "[m, k] × a weight of integers [n, k]: 2·m·k·n; scale 1 an output element, bias 1, activation.",
        ),
        "bitsandbytes.int8_scaled_mm": (2, _OF_EIGHT_BITS),
        "bitsandbytes.int8_linear_matmul": (0, _OF_EIGHT_BITS),
    },
)  # fmt: skip


@rule("aten._weight_int4pack_mm", "aten._weight_int4pack_mm_for_cpu")
def scaled_before_the_product(op: Op) -> Cost:
    """[m, k] × a weight of 4 bits [n, k]: 2·m·k·n; scale and zero point of its group 2 for each weight."""
    gemm = _linear(op)
    return Cost(gemms=(gemm,)) + work(product((gemm.n, gemm.k)), _DEQUANTIZE) + traffic(op)


@rule("quantized.linear_dynamic")
def dynamic_linear(op: Op) -> Cost:
    """2·m·k·n; the range of the input 2 an element and its 8-bit form 5; back and the bias 3 an output element."""
    gemm = _linear(op)
    weight = Cost(gemms=(gemm,), read_bytes=product((gemm.n, gemm.k)))
    return weight + work(op.inputs[0].numel, 2 + _QUANTIZE) + per_output(op, _DEQUANTIZE + 1)


_SCALES = ("per_tensor", "per_channel", "per_channel_group", "per_token")
_RANGES = (
    "choose_qparams",
    "choose_qparams_symmetric",
    "choose_qparams_per_token",
    "choose_qparams_per_token_asymmetric",
)
_DECOMPOSED = "quantized_decomposed"
family(
    per_input,
    {
        " ".join(f"{_DECOMPOSED}.quantize_{scale}" for scale in _SCALES): (_QUANTIZE,),
        " ".join(f"{_DECOMPOSED}.dequantize_{scale}" for scale in _SCALES): (_DEQUANTIZE,),
        " ".join(f"{_DECOMPOSED}.{name}" for name in _RANGES): (2,),  # the smallest and the largest
        "bitsandbytes.int8_vectorwise_quant": (2 + _QUANTIZE,),  # the largest of a row first
        # there and back; the two comparisons, joined, are the mask
        "aten.fake_quantize_per_tensor_affine_cachemask aten.fake_quantize_per_channel_affine_cachemask "
        "aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams": (_QUANTIZE + _DEQUANTIZE + 1,),
        "aten.fake_quantize_per_tensor_affine_cachemask_backward "
        "aten.fake_quantize_per_channel_affine_cachemask_backward": (1,),  # times the mask
    },
)


@rule("aten._fused_moving_avg_obs_fq_helper")
def observed_fake_quantization(op: Op) -> list[Cost]:
    """The smallest and the largest number 2 an element; then, with the scale that follows, there and back: 8."""
    x = op.inputs[0]
    there_and_back = work(x.numel, _QUANTIZE + _DEQUANTIZE + 1)
    return [
        Cost(label="range") + work(x.numel, 2) + reads((x,)),
        Cost(label="quantization") + there_and_back + reads((x,)) + writes(op.outputs),
    ]


# Products with sparse matrices, by the numbers that one holds; and with the pattern that keeps two of four.
#
# The tracer names an op on sparse tensors `sparse.…` and puts into `attrs["held"]`, for each of them, its place among
# the inputs, how many numbers it holds, and the bytes of their indices. Where that is not known, as of the product of
# two sparse matrices, the op is `sparse_of_unknown_size.…`, and priced by default.


_PARTS = (
    "_indices", "_values", "indices", "values", "crow_indices", "col_indices", "ccol_indices", "row_indices",
    "is_coalesced", "_coalesced_", "_nnz", "sparse_dim", "dense_dim", "_dimI", "_dimV",
)  # fmt: skip
_VIEWS = ("t", "transpose", "detach", "alias", "is_same_size")

# The parts of a sparse tensor are views of it, and so is its transpose.
free(*(f"{space}.{name}" for space in ("sparse", "sparse_of_unknown_size") for name in (*_PARTS, *_VIEWS)))
free(
    "aten._sparse_coo_tensor_with_dims", "aten._sparse_coo_tensor_with_dims_and_tensors",
    "aten._sparse_coo_tensor_unsafe", "aten._sparse_compressed_tensor_unsafe",
)  # fmt: skip


@rule("sparse.mm", "sparse._sparse_mm", "sparse.mv", "sparse.addmm", "sparse.addmv", "sparse._sparse_addmm")
def sparse_product(op: Op) -> Cost:
    """Each of the z numbers meets n columns, 2·z·n; of the dense matrix at most one row is read for each of them.

    Added to a matrix: an addition an element, and a multiplication by each factor that is not 1.
    """
    ((place, numbers, indices),) = op.attrs["held"]
    *added, first, second = op.inputs
    sparse, dense = (first, second) if place == len(added) else (second, first)
    (y,) = op.outputs
    each = product(dense.shape[1:] if dense is second else dense.shape[:-1])
    touched = smaller(dense.bytes, product((numbers, each, dense.dtype.itemsize)))
    read = total((product((numbers, sparse.dtype.itemsize)), indices, touched))
    gemm = Cost(gemms=(Gemm(m=1, n=each, k=numbers),), read_bytes=read)
    return gemm + (_factors(op, y) if added else Cost()) + reads(_used(op, len(added))[:-2]) + writes((y,))


@rule("sparse.add")
def add_sparse(op: Op) -> list[Cost]:
    """Each of the z numbers added to its place, 1, and times a factor that is not 1; the dense target copied before."""
    ((place, numbers, indices),) = op.attrs["held"]
    target, held = op.inputs[1 - place], product((numbers, op.inputs[place].dtype.itemsize))
    flop = 1 if op.attrs.get("alpha", 1) == 1 else 2
    kernel = work(numbers, flop) + Cost(read_bytes=total((held, indices, held)), write_bytes=held, label="sum")
    return [kernel] if op.kind.endswith("_") else [Cost(label="copy") + reads((target,)) + writes(op.outputs), kernel]


@rule("sparse.clone", timed_as=Family.MOVEMENT)
def copy_sparse(op: Op) -> Cost:
    """The z numbers and their indices, read and written."""
    ((_, numbers, indices),) = op.attrs["held"]
    held = total((product((numbers, op.inputs[0].dtype.itemsize)), indices))
    return Cost(read_bytes=held, write_bytes=held)


@rule("aten._sparse_semi_structured_mm", "aten._sparse_semi_structured_addmm")
def two_of_four(op: Op) -> Cost:
    """[m, k/2] packed × [k, n]: half the multiply-adds of the dense product. A matrix is added, times its factors."""
    added = op.kind.endswith("addmm")
    packed, _, b = op.inputs[added:]
    factors = sum(op.attrs.get(name, 1) != 1 for name in ("alpha", "beta"))
    gemm = Gemm(m=packed.shape[0], n=b.shape[1], k=packed.shape[1])
    return Cost(gemms=(gemm,)) + per_output(op, 1 + factors if added else 0)


@rule("aten._sparse_semi_structured_linear")
def two_of_four_linear(op: Op) -> Cost:
    """[rows, k] × weight [n, k/2] packed, and a bias; an activation is a comparison, or a sigmoid 3 and 2."""
    n, half = op.inputs[1].shape
    vector, special = _activation(op)
    gemm = Gemm(m=floor_div(op.outputs[0].numel, n), n=n, k=half)
    return Cost(gemms=(gemm,)) + per_output(op, vector + _biased(op), special)


@rule("aten._cslt_sparse_mm")
def two_of_four_by_cusparselt(op: Op) -> Cost:
    """A packed [m, k] × [k, n], its result possibly transposed: half of the k products an element, and a bias."""
    rows, columns = op.outputs[0].shape
    gemm = Gemm(m=rows, n=columns, k=floor_div(op.inputs[1].shape[0], 2))
    return Cost(gemms=(gemm,)) + per_output(op, _biased(op))
