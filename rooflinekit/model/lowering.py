"""Ops → loop nests, as inductor lowers them (torch 2.13: torch/_inductor/lowering.py and decomposition.py)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from rooflinekit.ir.inputs import Release
from rooflinekit.ir.op import ADDED, EAGER, Basis, DType, Family, Op, PricedOp, TensorSpec
from rooflinekit.ir.points import integer
from rooflinekit.model.loops import Access, Loop, Part, extern, op_name, pointwise

BIAS_GRADIENT = "bias gradient"  # label of a convolution's kernel

#: A reduction of fewer elements is written out as pointwise work (config.unroll_reductions_threshold).
UNROLLED = 8


def parts_of(priced: PricedOp, like: Release | None = None) -> tuple[Part, ...]:
    """The loops of an op in their order; none for a view. What a strategy has put in has one, a call."""
    if priced.op.kind.startswith(ADDED):
        return (extern(priced),)
    if not priced.costs:
        return ()
    name = op_name(priced.op)
    if name == "convolution" and priced.op.attrs.get("bias") is not None:
        return tuple(_convolution(priced))
    if name == "convolution_backward" and priced.costs[-1].label == BIAS_GRADIENT:
        return tuple(_convolution_backward(priced))
    if _is_extern(priced, name) or _is_pooled_by_library(priced.op, like):
        return (extern(priced),)
    if name in _REDUCTIONS:
        return tuple(_reduction(priced))
    for words, lower in _LOWERINGS:
        if any(word in name for word in words):
            return tuple(lower(priced))
    return (pointwise(priced, Loop.LIST if "_foreach_" in name else Loop.POINTWISE),)


#: Libraries, scans, atomic sums and ops whose result has no size before it is known: as in eager mode.
_LIBRARY = (
    "_fused_", "sort", "topk", "unique", "kthvalue", "median", "mode", "nonzero", "masked_select", "scatter",
    "index_put", "index_add", "index_reduce", "index_copy", "put", "embedding_bag", "embedding_dense_backward",
    "cumsum", "cumprod",
    "logcumsumexp", "histc", "bincount", "searchsorted", "bucketize", "multinomial", "randperm", "poisson", "binomial",
    "cdist", "pdist", "_fft", "linalg_", "cholesky", "_local_scalar_dense", "grid_sampler", "_ctc_loss", "col2im",
    "unfold_backward", "max_unpool", "renorm", "_amp_", "_aa", "gamma", "dirichlet", "_foreach_norm", "_foreach_max",
)  # fmt: skip
#: Whose names have such words, and that are loops all the same.
_LOOPS = ("linalg_vector_norm", "_fused_rms_norm", "_fused_rms_norm_backward")


def _is_extern(priced: PricedOp, name: str) -> bool:
    family = priced.timed_as
    if priced.basis is Basis.DEFAULT or not priced.op.kind.startswith("aten.") or not priced.op.outputs:
        return True
    if EAGER in priced.op.attrs:
        return True
    products = family in (Family.MATMUL, Family.CONVOLUTION, Family.ATTENTION, Family.RECURRENCE)
    return products or (name not in _LOOPS and any(word in name for word in _LIBRARY))


def _is_pooled_by_library(op: Op, like: Release | None) -> bool:
    """A window of more than 25, or a dilated one before some release (lowering.py: falls back)."""
    if "pool" not in op.kind or "backward" in op.kind:
        return False
    dilated = any(integer(step) > 1 for step in op.attrs.get("dilation") or ())
    return _window(op) > 25 or (dilated and like is not None and not like.compiles_dilated_pooling)


def _window(op: Op) -> int:
    found = 1
    for size in op.attrs.get("kernel_size") or ():
        found *= integer(size)
    return found


def _convolution(priced: PricedOp) -> Iterator[Part]:
    """The product of a library, then the bias as pointwise work (lowering of aten.convolution on GPUs)."""
    op = priced.op
    bias, output = op.attrs["bias"], op.outputs[0]
    product = replace(output, name=f"{op.name}.product", storage=output.memory)
    library = extern(priced)
    given = tuple(access for access in library.reads if access.spec.name != bias.name)
    yield replace(library, reads=given, writes=(product,))
    reads = (Access(spec=product, bytes=integer(output.bytes)), Access(spec=bias, bytes=integer(bias.bytes)))
    vector = integer(priced.costs[0].vector_flop)
    yield replace(pointwise(priced), label="bias", reads=reads, writes=(output,), vector=vector, special=0)


def _convolution_backward(priced: PricedOp) -> Iterator[Part]:
    """The products of a library; the bias's gradient is a sum of its own (decomposition of convolution_backward)."""
    op = priced.op
    grad, result = op.inputs[0], op.outputs[-1]
    yield replace(extern(priced), writes=op.outputs[:-1])
    yield Part(
        priced=priced, label="sum", loop=Loop.REDUCTION, outer=integer(result.numel), columns=True,
        inner=integer(grad.numel) // integer(result.numel), reads=(Access(spec=grad, bytes=integer(grad.bytes)),),
        writes=(result,), vector=integer(priced.costs[-1].vector_flop),
    )  # fmt: skip


def _reduction(priced: PricedOp) -> Iterator[Part]:
    """Sums, means, maxima, losses: of all elements that belong to one result."""
    op = priced.op
    part = pointwise(priced)
    source = max((access.spec for access in part.reads), key=lambda spec: integer(spec.numel), default=op.outputs[0])
    results = max(1, integer(op.outputs[0].numel))
    inner = integer(source.numel) // results
    if inner < UNROLLED:
        yield part
        return
    last = op.attrs.get("dim")
    rows = last is None or (isinstance(last, tuple) and not last) or _reaches_last(last, len(source.shape))
    yield replace(part, loop=Loop.REDUCTION, outer=results, inner=inner, columns=not rows)


def _reaches_last(dims: object, rank: int) -> bool:
    found = dims if isinstance(dims, tuple) else (dims,)
    return any(isinstance(dim, int) and dim % max(rank, 1) == rank - 1 for dim in found)


def _pooling(priced: PricedOp) -> Iterator[Part]:
    """To one pixel a mean over rows (decomposition of _adaptive_avg_pool2d), else a window at each result."""
    op = priced.op
    if "adaptive_avg" in op.kind and "backward" not in op.kind and set(op.outputs[0].shape[2:]) == {1}:
        part = next(_reduction(replace(priced, op=replace(op, attrs={**op.attrs, "dim": None}))))
        yield replace(part, priced=priced, reads=tuple(replace(a, gathered=False) for a in part.reads))
    else:
        yield pointwise(priced)


def _statistics(
    priced: PricedOp, outer: int, inner: int, *, columns: bool, kept: tuple[TensorSpec, ...] = ()
) -> Iterator[Part]:
    """A reduction to statistics of each row, then pointwise work that reads them: softmax and normalizations.

    Half of the arithmetic is done in each. `kept`: results of the op that are statistics.
    """
    part = pointwise(priced)
    op = priced.op
    made = TensorSpec(name=f"{op.name}.statistics", shape=(outer,), dtype=DType.FLOAT32)
    first = replace(
        part, label=f"{part.label}", loop=Loop.REDUCTION, outer=outer, inner=inner, columns=columns,
        writes=(made, *kept), vector=part.vector // 2, special=part.special // 2,
    )  # fmt: skip
    yield first
    yield replace(
        part, reads=(*part.reads, Access(spec=made, bytes=integer(made.bytes))), outer=outer * inner,
        writes=tuple(t for t in op.outputs if t not in kept),
        vector=part.vector - first.vector, special=part.special - first.special,
    )  # fmt: skip


def _softmax(priced: PricedOp) -> Iterator[Part]:
    y = priced.op.outputs[0]
    dim = integer(priced.op.attrs.get("dim", -1))
    length = integer(y.shape[dim]) if y.shape else 1
    yield from _statistics(
        priced, integer(y.numel) // max(1, length), length, columns=dim % max(1, len(y.shape)) != len(y.shape) - 1
    )


def _row_norm(priced: PricedOp) -> Iterator[Part]:
    """Layer, RMS and group normalization, their statistics among the op's results."""
    op = priced.op
    y, kept = op.outputs[0], op.outputs[1:]
    rows = max(1, integer(kept[0].numel) if kept else integer(y.numel) // integer(y.shape[-1]))
    yield from _statistics(priced, rows, integer(y.numel) // rows, columns=False, kept=kept)


def _batch_norm(priced: PricedOp) -> Iterator[Part]:
    """In training statistics over all but the channels; else pointwise."""
    op = priced.op
    x, y = op.inputs[0], op.outputs[0]
    training = bool(op.attrs.get("training", op.attrs.get("train", "no_" not in op.kind)))
    if not training:
        yield replace(pointwise(priced), writes=(y,))
        return
    channels = integer(x.shape[1])
    running = tuple(s for s in (op.attrs.get("running_mean"), op.attrs.get("running_var")) if isinstance(s, TensorSpec))
    kept = tuple(t for t in op.outputs[1:] if integer(t.numel) == channels)
    parts = tuple(
        _statistics(priced, channels, integer(y.numel) // channels, columns=integer(x.shape[0]) > 1, kept=kept)
    )
    yield replace(parts[0], writes=(*parts[0].writes, *running))
    yield replace(parts[1], writes=(y,))


def _norm_backward(priced: PricedOp) -> Iterator[Part]:
    """Sums over each row for the gradient of the input, and over the rows for those of gain and shift."""
    op = priced.op
    x = op.inputs[1]
    wanted = tuple(op.attrs.get("output_mask", (True,) * len(op.outputs)))
    results = iter(op.outputs)
    input_gradient = (next(results),) if wanted and wanted[0] and op.outputs else ()
    others = tuple(results)
    batch = "batch_norm" in op.kind
    channels = (
        integer(x.shape[1])
        if batch or "group" in op.kind
        else max([integer(t.numel) for t in others] or [integer(x.shape[-1])])
    )
    weights = next((cost for cost in priced.costs if cost.label.startswith("gain")), None)
    if input_gradient:
        whole = replace(
            priced, op=replace(op, outputs=input_gradient), costs=tuple(c for c in priced.costs if c is not weights)
        )
        rows = channels if batch else _rows(op, integer(x.numel), channels)
        kept = others if batch else ()  # batch norm's sums over each channel are those gradients
        for part in _statistics(whole, rows, integer(x.numel) // rows, columns=batch, kept=kept):
            yield replace(part, priced=priced)
    if others and not (batch and input_gradient):
        alone = replace(priced, op=replace(op, outputs=others), costs=(weights,) if weights else priced.costs)
        part = pointwise(alone)
        yield replace(
            part, priced=priced, loop=Loop.REDUCTION, outer=channels, inner=integer(x.numel) // channels, columns=True
        )


def _rows(op: Op, numel: int, channels: int) -> int:
    """Rows of a layer or group normalization, from its saved statistics."""
    statistics = [integer(t.numel) for t in op.inputs[2:4] if numel % max(1, integer(t.numel)) == 0]
    return statistics[0] if statistics else max(1, numel // channels)


_REDUCTIONS = ("max", "min", "any", "all", "norm", "logsumexp")  # words that stand in other names too
_LOWERINGS = (
    (("softmax",), _softmax),
    (("batch_norm_backward", "layer_norm_backward", "group_norm_backward", "rms_norm_backward"), _norm_backward),
    (("native_layer_norm", "native_group_norm", "rms_norm"), _row_norm),
    (("batch_norm",), _batch_norm),
    (("pool",), _pooling),
    (
        ("sum", "prod", "mean", "loss", "amax", "amin", "argm", "var", "std", "vector_norm", "count_nonzero"),
        _reduction,
    ),
)  # fmt: skip
