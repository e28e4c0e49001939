"""What a trace reads off torch's tensors, and notes on them."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import torch
from torch.utils import _pytree as pytree

from rooflinekit.ir.op import DType, TensorSpec

#: Where fake tensors stand: a fake CUDA device would end the process in a build of torch without CUDA.
FAKE_DEVICE = "cpu"
#: Attributes of a traced tensor: its record, and its node in the fx graph.
SPEC, NODE = "_rooflinekit_spec", "_rooflinekit_node"


def specs_in(value: Any) -> Iterator[TensorSpec]:
    """Every record in an argument as it stands in `Op.attrs`."""
    if isinstance(value, TensorSpec):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from specs_in(item)


def leaves_of(value: Any) -> Iterator[torch.Tensor]:
    """Every tensor in what a model returns: in lists, dicts and dataclasses, and those inside."""
    for leaf in pytree.tree_leaves(value):
        if isinstance(leaf, torch.Tensor):
            yield leaf
        elif dataclasses.is_dataclass(leaf) and not isinstance(leaf, type):
            yield from leaves_of([getattr(leaf, field.name, None) for field in dataclasses.fields(leaf)])


def shared_memory(tensor: torch.Tensor, args: Sequence[Any]) -> str:
    """Name of the memory that a new tensor shares with one of the op's arguments; "" for memory of its own."""
    if tensor.layout is not torch.strided:
        return ""
    storage = tensor.untyped_storage()._cdata
    for candidate in tensors_in(args):
        if candidate.layout is torch.strided and candidate.untyped_storage()._cdata == storage:
            spec: TensorSpec | None = getattr(candidate, SPEC, None)
            return spec.memory if spec is not None else ""
    return ""


def tensors_in(args: Sequence[Any]) -> Iterator[torch.Tensor]:
    """Every tensor among arguments and in lists of them."""
    for arg in args:
        if isinstance(arg, torch.Tensor):
            yield arg
        elif isinstance(arg, list | tuple):
            yield from (item for item in arg if isinstance(item, torch.Tensor))


@functools.cache
def wraps_tensors(kind: type) -> bool:
    """Whether it is a kind of tensor that consists of others, such as a nested one."""
    return hasattr(kind, "__tensor_flatten__")


def parts_of(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The tensor itself, or those that it consists of."""
    if not wraps_tensors(type(tensor)):
        return (tensor,)
    names, _ = tensor.__tensor_flatten__()  # type: ignore[attr-defined]
    return tuple(getattr(tensor, name) for name in names)


def known_contiguous(tensor: torch.Tensor) -> bool:
    """Whether the strides are those of a dense row-major tensor, found without guarding on a symbol."""
    if tensor.layout is not torch.strided:
        return True
    expected: Any = 1
    padded: Any = 1  # as torch's own shape functions write it for sizes that it cannot tell from 0
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.stride()), strict=True):
        if isinstance(size, int) and size == 1:
            continue
        if expression(stride) not in (expression(expected), expression(padded)):
            return False
        expected, padded = expected * size, padded * _at_least_one(size)
    return True


def _at_least_one(size: Any) -> Any:
    """The size, or 1 if that is more."""
    return torch.sym_max(size, 1) if isinstance(size, torch.SymInt) else max(size, 1)  # type: ignore[no-untyped-call]


def expression(size: Any) -> Any:
    """A size as sympy sees it: comparing two of these asks the model's sizes nothing."""
    return size.node.expr if isinstance(size, torch.SymInt) else size


# Sizes of results, where torch's own way to them forces every open size to its example, is slow, or does not exist.


@dataclass(frozen=True, slots=True)
class Made:
    """Sizes, strides and format of a returned tensor."""

    shape: tuple[Any, ...]
    stride: tuple[Any, ...]
    dtype: torch.dtype

    @classmethod
    def like(cls, tensor: torch.Tensor) -> Made:
        """The metadata of an existing tensor."""
        return cls(tuple(tensor.shape), tensor.stride(), tensor.dtype)


def contiguous(shape: Sequence[Any], dtype: torch.dtype) -> Made:
    """A dense tensor, row by row; products of open sizes ask nothing about them."""
    stride: list[Any] = []
    step: Any = 1
    for size in reversed(shape):
        stride.insert(0, step)
        step = step * size
    return Made(tuple(shape), tuple(stride), dtype)


def _batch_norm(
    x: torch.Tensor, weight: Any, bias: Any, mean: Any, variance: Any, training: bool, momentum: float, eps: float
) -> tuple[Made, ...]:
    """torch finds this by running a decomposition of twenty ops, 6 ms for each new shape."""
    saved = _statistics(x, (x.shape[1] if training else 0,))
    return Made.like(x), saved, saved


def _rms_norm(x: torch.Tensor, shape: Sequence[Any], weight: Any, eps: float | None) -> tuple[Made, ...]:
    """The result, and 1/σ of each row."""
    rows = [*x.shape[: x.dim() - len(shape)], *[1] * len(shape)]
    return contiguous(x.shape, x.dtype), _statistics(x, rows)


def _statistics(x: torch.Tensor, shape: Sequence[Any]) -> Made:
    """The statistics that a normalization keeps of its input."""
    return contiguous(shape, torch.float64 if x.dtype is torch.float64 else torch.float32)


def _constant_pad(x: torch.Tensor, pad: Sequence[Any], value: Any = 0) -> tuple[Made, ...]:
    """`pad` begins with the last dimension."""
    shape: list[Any] = list(x.shape)
    for i in range(len(pad) // 2):
        shape[-1 - i] = shape[-1 - i] + pad[2 * i] + pad[2 * i + 1]
    return (contiguous(shape, x.dtype),)


def _im2col(
    x: torch.Tensor, kernel: Sequence[int], dilation: Sequence[int], padding: Sequence[int], stride: Sequence[int]
) -> tuple[Made, ...]:
    """[n, c, h, w] → [n, c·r·s, windows]; without n likewise."""
    *lead, c, h, w = x.shape
    windows = 1
    for i, size in enumerate((h, w)):
        windows = windows * ((size + 2 * padding[i] - dilation[i] * (kernel[i] - 1) - 1) // stride[i] + 1)
    return (contiguous((*lead, c * kernel[0] * kernel[1], windows), x.dtype),)


def _col2im(x: torch.Tensor, size: Sequence[Any], kernel: Sequence[int], *options: Any) -> tuple[Made, ...]:
    """[n, c·r·s, windows] → [n, c, h, w]; without n likewise."""
    *lead, rows, _ = x.shape
    return (contiguous((*lead, rows // math.prod(kernel), *size), x.dtype),)


def _ctc_loss(
    log_probability: torch.Tensor, targets: torch.Tensor, lengths: Any, target_lengths: Any, *options: Any
) -> tuple[Made, ...]:
    """Losses [n], and alpha [n, t, 2·l + 1] for targets of at most l labels: as many as there is room for."""
    steps, batch, _ = log_probability.shape
    if isinstance(target_lengths, list | tuple):
        longest: Any = max(target_lengths)
    elif targets.dim() == 2:
        longest = targets.shape[1]
    else:
        raise ValueError("ctc_loss of concatenated targets: how long each is stands in a tensor; pass [batch, length]")
    dtype = log_probability.dtype
    return contiguous((batch,), dtype), contiguous((batch, steps, 2 * longest + 1), dtype)


def _lstm_cell_backward(
    grad: Any, grad_cell: Any, cell: torch.Tensor, _: Any, gates: torch.Tensor, has_bias: bool
) -> tuple[Made, ...]:
    """Gradients of the gates, of the cell, and of a bias."""
    bias = contiguous((gates.shape[1] if has_bias else 0,), gates.dtype)
    return contiguous(gates.shape, gates.dtype), contiguous(cell.shape, cell.dtype), bias


def _gru_cell_backward(grad: torch.Tensor, kept: torch.Tensor, has_bias: bool) -> tuple[Made, ...]:
    """Gradients of both gates' products, of the state, and of both biases."""
    batch, size = grad.shape
    gates, bias = contiguous((batch, 3 * size), grad.dtype), contiguous((3 * size * has_bias,), grad.dtype)
    return gates, gates, contiguous((batch, size), grad.dtype), bias, bias


def _common(shapes: Iterable[Sequence[Any]]) -> list[Any]:
    """The sizes of what is broadcast from these shapes."""
    from_last = zip_longest(*map(reversed, shapes), fillvalue=1)
    return [next((s for s in sizes if not isinstance(s, int) or s != 1), 1) for sizes in from_last][::-1]


def broadcast(*tensors: torch.Tensor, **factors: Any) -> tuple[Made, ...]:
    """Element by element."""
    dtype = functools.reduce(torch.promote_types, (tensor.dtype for tensor in tensors))
    shape = _common(tensor.shape for tensor in tensors)
    whole = [t for t in tensors if list(map(expression, t.shape)) == list(map(expression, shape))]
    if whole and not is_expanded(whole[0]):
        return (Made(tuple(shape), whole[0].stride(), dtype),)
    return (contiguous(shape, dtype),)


def is_expanded(x: torch.Tensor) -> bool:
    """Whether elements along some dimension stand in the same memory."""
    return any(isinstance(step, int) and step == 0 for step in x.stride())


def _solve_triangular(a: torch.Tensor, b: torch.Tensor, **options: bool) -> tuple[Made, ...]:
    """Solutions for the right sides `b`, column after column."""
    lead = _common(x.shape[:-2] for x in (a, b))
    *steps, row, column = contiguous((*lead, b.shape[-1], b.shape[-2]), b.dtype).stride
    return (Made((*lead, *b.shape[-2:]), (*steps, column, row), b.dtype),)


_COMPLEX = {torch.float16: torch.complex32, torch.float32: torch.complex64, torch.float64: torch.complex128}
_REAL = {of: real for real, of in _COMPLEX.items()}


def _of_two(real: torch.Tensor, other: torch.Tensor) -> tuple[Made, ...]:
    """A complex number of two real ones."""
    (whole,) = broadcast(real, other)
    return (Made(whole.shape, whole.stride, _COMPLEX[whole.dtype]),)


def _fft_r2c(x: torch.Tensor, dims: Sequence[int], normalization: int, onesided: bool) -> tuple[Made, ...]:
    """A transform of real numbers: along the last dimension named, the half that is not redundant."""
    shape: list[Any] = list(x.shape)
    if onesided:
        shape[dims[-1]] = shape[dims[-1]] // 2 + 1
    return (contiguous(shape, _COMPLEX[x.dtype]),)


def _fft_c2r(x: torch.Tensor, dims: Sequence[int], normalization: int, last: Any) -> tuple[Made, ...]:
    shape: list[Any] = list(x.shape)
    shape[dims[-1]] = last
    return (contiguous(shape, _REAL[x.dtype]),)


def _trilinear(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, in_a: Sequence[int], in_b: Sequence[int], in_c: Sequence[int],
    summed: Sequence[int], unrolled: int = 1,
) -> tuple[Made, ...]:  # fmt: skip
    """Three factors, each with 1 where it lacks a dimension, broadcast; then dimensions are summed away."""
    shapes = []
    for factor, places in ((a, in_a), (b, in_b), (c, in_c)):
        shape: list[Any] = list(factor.shape)
        for place in sorted(places):
            shape.insert(place, 1)
        shapes.append(shape)
    whole = _common(shapes)
    return (contiguous([size for dim, size in enumerate(whole) if dim not in summed], a.dtype),)


def _grouped_mm(
    a: torch.Tensor, b: torch.Tensor, offs: torch.Tensor | None = None, bias: Any = None, out_dtype: Any = None
) -> tuple[Made, ...]:
    """Products in groups; torch knows their sizes for bfloat16 alone, CUDA runs others one by one."""
    dtype = out_dtype or a.dtype
    if a.dim() == b.dim() == 2 and offs is not None:
        return (contiguous((offs.shape[0], a.shape[0], b.shape[1]), dtype),)
    lead = (a.shape[0],) if a.dim() == b.dim() == 3 else ()
    return (contiguous((*lead, a.shape[-2], b.shape[-1]), dtype),)


def is_mask(index: Any) -> bool:
    """Whether an index is a mask of what it takes."""
    return isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8)


def indexed(x: torch.Tensor, indices: Sequence[torch.Tensor | None], trues: Callable[[torch.Tensor], Any]) -> list[Any]:
    """Sizes of `x[indices]`, of masks those elements that `trues` says."""
    kept: list[Any] = []  # sizes of x that no index stands for, None where one does
    named: list[tuple[Any, ...]] = []
    for index in indices:
        if index is None:
            kept.append(x.shape[len(kept)])
            continue
        masks = is_mask(index)
        kept += [None] * (index.dim() if masks else 1)
        named.append((trues(index),) if masks else tuple(index.shape))
    kept += x.shape[len(kept) :]
    first, last = kept.index(None), len(kept) - kept[::-1].index(None)
    apart = any(size is not None for size in kept[first:last])  # then the named dimensions go to the front
    rest = [size for size in kept if size is not None]
    before = 0 if apart else first
    return [*rest[:before], *_common(named), *rest[before:]]


def expanded_stride(x: torch.Tensor, shape: Sequence[Any]) -> tuple[Any, ...]:
    """Strides of an expanded tensor as PyTorch has them for numbers, also along dimensions of one element; for open
    sizes it has others there, and convolutions look at them.
    """
    if not x.dim():
        return (0,) * len(shape)
    stride: list[Any] = []
    for i in reversed(range(len(shape))):
        dim = x.dim() - len(shape) + i
        step = x.stride(dim) if dim >= 0 else shape[i + 1] * stride[0]
        own: Any = x.shape[dim] if dim >= 0 else 1
        many = (own.node.hint if isinstance(own, torch.SymInt) else own) != 1  # also where formulas do not show it
        stride.insert(0, step if many or expression(own) == expression(shape[i]) else 0)
    return tuple(stride)


def _resampled(x: torch.Tensor, shape: Sequence[Any]) -> tuple[Made, ...]:
    """Channels lie next to each other where the argument's do."""

    def last(sizes: Sequence[Any]) -> tuple[Any, ...]:
        batch, *places, channels = contiguous((sizes[0], *sizes[2:], sizes[1]), x.dtype).stride
        return (batch, channels, *places)

    made = contiguous(shape, x.dtype)
    lies = x.dim() > 3 and all(expression(a) == expression(b) for a, b in zip(x.stride(), last(x.shape), strict=True))
    return (dataclasses.replace(made, stride=last(shape)) if lies else made,)


_aten = torch.ops.aten

#: Operators of torch's that take whole numbers alone for a size, as such that take an open one.
OF_OPEN_SIZES: Any = torch.library.Library("rooflinekit", "FRAGMENT")  # type: ignore[no-untyped-call]
OF_OPEN_SIZES.define("linspace(Scalar start, Scalar end, SymInt steps, *, ScalarType dtype) -> Tensor")

#: Names of the resampling operators, which exist with a `_backward` each.
RESAMPLING = (
    "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "_upsample_nearest_exact1d",
    "_upsample_nearest_exact2d", "_upsample_nearest_exact3d", "upsample_linear1d", "upsample_bilinear2d",
    "upsample_bicubic2d", "upsample_trilinear3d", "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa",
)  # fmt: skip

#: Operators whose results follow from their arguments' sizes.
OWN_SHAPES: dict[Any, Callable[..., tuple[Made, ...]]] = {
    _aten.native_batch_norm.default: _batch_norm,
    _aten._fused_rms_norm.default: _rms_norm,
    _aten.constant_pad_nd.default: _constant_pad,
    _aten.im2col.default: _im2col,
    _aten.complex.default: _of_two,
    _aten.polar.default: _of_two,
    _aten._fft_r2c.default: _fft_r2c,
    _aten._fft_c2c.default: lambda x, *options: (contiguous(x.shape, x.dtype),),
    _aten._fft_c2r.default: _fft_c2r,
    # a place in the image for each element of the result, but its channels
    _aten.affine_grid_generator.default: lambda theta, size, align_corners: (
        contiguous((size[0], *size[2:], len(size) - 2), theta.dtype),
    ),
    # for each place in the grid the channels; torch finds this by running a hundred ops, with questions of sizes
    **dict.fromkeys(
        (_aten.grid_sampler_2d.default, _aten.grid_sampler_3d.default),
        lambda x, grid, *options: (contiguous((*x.shape[:2], *grid.shape[1:-1]), x.dtype),),
    ),
    torch.ops.rooflinekit.linspace.default: lambda start, end, steps, dtype: (contiguous((steps,), dtype),),
    _aten._grouped_mm.default: _grouped_mm,
    _aten._trilinear.default: _trilinear,
    **dict.fromkeys((_aten._is_all_true.default, _aten._is_any_true.default), lambda x: (Made((), (), torch.bool),)),
    _aten.col2im.default: _col2im,
    _aten.addcmul.default: broadcast,
    _aten.addcdiv.default: broadcast,
    _aten.baddbmm.default: lambda added, a, b, **factors: (contiguous((*a.shape[:2], b.shape[2]), a.dtype),),
    _aten.linalg_solve_triangular.default: _solve_triangular,
    # state and cell, and what backward needs of the four gates
    _aten._thnn_fused_lstm_cell.default: lambda gates, _, cell, *biases: (
        contiguous(cell.shape, gates.dtype), contiguous(cell.shape, cell.dtype), contiguous(gates.shape, gates.dtype),
    ),
    _aten._thnn_fused_lstm_cell_backward_impl.default: _lstm_cell_backward,
    # state, and five numbers a state that backward needs: three gates, the state before, and the candidate's part
    _aten._thnn_fused_gru_cell.default: lambda gates, _, hidden, *biases: (
        contiguous(hidden.shape, hidden.dtype), contiguous((hidden.shape[0], 5 * hidden.shape[1]), gates.dtype),
    ),
    _aten._thnn_fused_gru_cell_backward.default: _gru_cell_backward,
    _aten._ctc_loss.default: _ctc_loss,
    _aten._ctc_loss.Tensor: _ctc_loss,
    **dict.fromkeys(
        (_aten._ctc_loss_backward.default, _aten._ctc_loss_backward.Tensor),
        lambda grad, scores, *rest: (contiguous(scores.shape, scores.dtype),),
    ),
    **dict.fromkeys(
        (getattr(_aten, name).default for name in RESAMPLING),
        lambda x, size, *options: _resampled(x, (*x.shape[:2], *size)),
    ),
    **dict.fromkeys(
        (getattr(_aten, f"{name}_backward").default for name in RESAMPLING),
        lambda grad, size, whole, *options: _resampled(grad, whole),
    ),
}  # fmt: skip


def _wanted(given: Sequence[Any], wanted: Sequence[bool]) -> tuple[Any, ...]:
    """Gradients, each where it is wanted."""
    return tuple(one if asked else None for one, asked in zip(given, wanted, strict=True))


#: Operators that torch cannot run on fake tensors: their results are like these of their arguments.
LIKE_ARGUMENTS: dict[Any, Callable[[Sequence[Any]], tuple[Any, ...]]] = {
    # input, weights, stride, buffer, hidden state, cell state
    _aten._cudnn_rnn_backward.default: lambda args: (args[0], args[4], args[5], list(args[1])),
    # of query, key, value and mask
    _aten._scaled_dot_product_efficient_attention_backward.default: lambda args: _wanted(args[1:5], args[10]),
    # gradient, input, shape, 1/σ, weight, which are wanted
    _aten._fused_rms_norm_backward.default: lambda args: _wanted((args[1], args[4]), args[5]),
}


# What a dispatched operator says of itself: its arguments, whether it is made of others, the tensors of its result.


DTYPES = {getattr(torch, dtype.value): dtype for dtype in DType if hasattr(torch, dtype.value)}


@functools.cache
def schema_of(function: torch._ops.OpOverload) -> tuple[str, tuple[tuple[str, Any], ...], tuple[int, ...]]:
    """Kind of an operator, its arguments' names with their defaults, and which of them it writes to."""
    schema = function._schema
    arguments = tuple((a.name, a.default_value if a.has_default_value() else None) for a in schema.arguments)
    written = tuple(i for i, a in enumerate(schema.arguments) if a.alias_info and a.alias_info.is_write)
    return schema.name.replace("rooflinekit::", "aten::").replace("::", "."), arguments, written


@functools.cache
def filled_by(function: torch._ops.OpOverload) -> frozenset[str]:
    """Names of an operator's `out=` arguments, which it writes to and does not read."""
    return frozenset(a.name for a in function._schema.arguments if a.is_out)


@functools.cache
def composite(function: Any) -> bool:
    """Whether it is defined by other operators alone, on a GPU too."""
    if not isinstance(function, torch._ops.OpOverload) or function.namespace != "aten" or function in OWN_SHAPES:
        return False
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    name = f"{function._schema.name}.{function._schema.overload_name}".rstrip(".")
    known = torch._C._dispatch_has_kernel(name)  # sizes and strides are asked for by names that have none
    return known and has(name, "CompositeImplicitAutograd") and not has(name, "CPU")


#: Operators that take tensors of one format only, which torch checks where they run and not on fake tensors.
PRODUCTS = frozenset({
    _aten.mm.default, _aten.addmm.default, _aten.bmm.default, _aten.baddbmm.default, _aten.mv.default,
    _aten.addmv.default, _aten.dot.default, _aten.convolution.default,
})  # fmt: skip
ONE_FORMAT = "takes tensors of one format"


def check_formats(kind: str, arguments: Iterable[Any]) -> None:
    """Raises TypeError, as a GPU does, where the tensors of a product differ in format."""
    found = dict.fromkeys(str(one.dtype) for one in arguments if isinstance(one, torch.Tensor))
    if len(found) > 1:
        raise TypeError(f"{kind} {ONE_FORMAT}; got {' and '.join(found)}")


def placed(output: Any, place: tuple[int, ...] = ()) -> Iterator[tuple[tuple[int, ...], torch.Tensor]]:
    """The tensors of a result, each with its place in it: gradients of a list of weights are a list in a tuple."""
    if isinstance(output, torch.Tensor):
        yield place, output
    elif isinstance(output, list | tuple):
        for i, part in enumerate(output):
            yield from placed(part, (*place, i))


# Sparse tensors in a trace: how many numbers each holds, noted on the tensor itself.
#
# A fake sparse tensor knows its sizes alone. The numbers are counted where it enters: as a weight, or made from a
# tensor of values. An operator's result of the same sizes holds as many; of any other, a trace does not know.


_HELD = "_rooflinekit_held"  # numbers, and bytes of their indices
_INT64 = 8

#: Operators of which the result holds the numbers of the first argument.
_KEEPING = ("t", "transpose", "detach", "alias", "clone", "_to_copy", "_coalesce", "_coalesced_", "mul", "div", "neg")


def note_weight(fake: torch.Tensor, real: torch.Tensor) -> None:
    """Notes on a fake sparse tensor what the real one holds."""
    numbers = real.values() if real.layout is not torch.sparse_coo else real._values()
    if real.layout is torch.sparse_coo:
        indices = [real._indices()]
    elif real.layout in (torch.sparse_csr, torch.sparse_bsr):
        indices = [real.crow_indices(), real.col_indices()]
    else:
        indices = [real.ccol_indices(), real.row_indices()]
    setattr(fake, _HELD, (numbers.numel(), sum(index.numel() * index.itemsize for index in indices)))


def note_result(name: str, args: Sequence[Any], output: Any) -> None:
    """Notes on an operator's sparse result how many numbers it holds, where that is known."""
    if name == "_embedding_bag_backward":  # a row for each index
        grad, indices = args[:2]
        setattr(output, _HELD, (indices.numel() * grad.shape[1], indices.numel() * _INT64))
        return
    if name.startswith("_sparse_coo_tensor") and name.endswith(("tensors", "unsafe")):
        indices, values = [arg for arg in args if isinstance(arg, torch.Tensor)][:2]
        setattr(output, _HELD, (values.numel(), indices.numel() * _INT64))
    elif name in _KEEPING and hasattr(args[0], _HELD):
        setattr(output, _HELD, getattr(args[0], _HELD))


def is_sparse(value: Any) -> bool:
    """Whether it is a tensor that does not store all of its elements."""
    return isinstance(value, torch.Tensor) and value.layout is not torch.strided


def held(args: Sequence[Any], size: Callable[[Any], Any]) -> tuple[tuple[int, Any, Any], ...] | None:
    """Of each sparse tensor among arguments: its place among the tensors, its numbers, and bytes of their indices.

    None where one holds an unknown number of them, and where there are two, for of them the places count. `size` turns
    torch's sizes into ours.
    """
    tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
    sparse = [(place, getattr(tensor, _HELD, None)) for place, tensor in enumerate(tensors) if is_sparse(tensor)]
    if len(sparse) > 1 or any(found is None for _, found in sparse):
        return None
    return tuple((place, *map(size, found)) for place, found in sparse if found is not None)
