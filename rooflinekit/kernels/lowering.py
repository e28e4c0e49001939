"""Ops → loop nests, as inductor lowers them (torch 2.13: torch/_inductor/lowering.py and decomposition.py)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from rooflinekit.cost.rules.convolution import ADAPTIVE_AVERAGES, MAX_POOL, MAX_POOL_GRADIENT, POOLS
from rooflinekit.cost.rules.elementwise import SOFTMAX_GRADIENTS, SOFTMAXES
from rooflinekit.cost.rules.optimizer import LISTS
from rooflinekit.cost.rules.reduction import (
    BATCH_NORM_GRADIENTS,
    BATCH_NORMS,
    GROUP_NORM,
    GROUP_NORM_GRADIENT,
    LAYER_NORM,
    LAYER_NORM_GRADIENT,
    RMS_NORM,
    RMS_NORM_GRADIENT,
    by_batch,
)
from rooflinekit.cost.table import aten, price_all
from rooflinekit.ir.inputs import PRESENT, Release
from rooflinekit.ir.op import ADDED, EAGER, OF_PRODUCTS, Basis, DType, Op, PricedOp, TensorSpec
from rooflinekit.ir.points import integer
from rooflinekit.kernels.loops import Access, Loop, Part, Walk, dims_of, extern, pointwise, walk_of

BIAS, BIAS_GRADIENT = "bias", "bias gradient"  # labels of kernels beside a product's or a convolution's

#: A reduction of fewer elements is written out as pointwise work (config.unroll_reductions_threshold).
UNROLLED = 8


def parts_of(priced: PricedOp, like: Release | None = None) -> tuple[Part, ...]:
    """The loops of an op in their order; none for a view. What a strategy has put in has one, a call."""
    op = priced.op
    if not (priced.costs or op.kind.startswith(ADDED)):
        return ()
    if op.kind == "aten.convolution" and op.attrs.get("bias") is not None:
        return tuple(_convolution(priced))
    if is_biased_product(op) and not ((like or PRESENT).keeps_half_biases and op.outputs[0].dtype.sixteen_bits):
        return tuple(_biased_product(priced))
    if op.kind == "aten.convolution_backward" and priced.costs[-1].label == BIAS_GRADIENT:
        return tuple(_convolution_backward(priced))
    if _is_extern(priced) or _is_pooled_by_library(op, like):
        return (extern(priced),)
    if op.kind in (MAX_POOL, MAX_POOL_GRADIENT):
        return tuple(_max_pooling(priced, like or PRESENT))
    lower = _LOWERINGS.get(op.kind.removesuffix("_"))
    return (pointwise(priced),) if lower is None else tuple(lower(priced))


#: Libraries, scans, atomic sums and ops whose result has no size before it is known: as in eager mode.
_LIBRARY = frozenset(
    aten(
        "_fused_sgd _fused_adam _fused_adamw _fused_adagrad _fused_dropout _fused_moving_avg_obs_fq_helper "
        "_thnn_fused_lstm_cell _thnn_fused_gru_cell _thnn_fused_lstm_cell_backward_impl "
        "_thnn_fused_gru_cell_backward _amp_foreach_non_finite_check_and_unscale _amp_update_scale _foreach_norm "
        "_foreach_max sort argsort searchsorted bucketize topk kthvalue median nanmedian mode _unique2 unique_dim "
        "unique_consecutive histc bincount nonzero nonzero_static masked_select cumsum cumprod logcumsumexp renorm "
        "_is_all_true _is_any_true diagonal_scatter as_strided_scatter scatter scatter_add scatter_reduce "
        "masked_scatter masked_scatter_backward index_put _unsafe_index_put _index_put_impl index_add index_reduce "
        "index_copy put unfold_backward col2im max_unpool2d max_unpool3d embedding_dense_backward embedding_renorm "
        "_embedding_bag _embedding_bag_forward_only _embedding_bag_backward _embedding_bag_dense_backward "
        "_embedding_bag_per_sample_weights_backward _local_scalar_dense randperm poisson binomial multinomial "
        "_standard_gamma _standard_gamma_grad _sample_dirichlet _dirichlet_grad digamma polygamma igamma "
        "igammac _ctc_loss _ctc_loss_backward _cdist_forward _cdist_backward _pdist_forward _pdist_backward "
        "_fft_c2c _fft_r2c _fft_c2r linalg_cholesky_ex linalg_ldl_factor_ex linalg_inv_ex "
        "cholesky_inverse cholesky_solve linalg_eig linalg_eigvals _linalg_eigvals _linalg_eigh linalg_lu_factor_ex "
        "linalg_lu linalg_lu_solve linalg_ldl_solve linalg_solve_triangular _linalg_solve_ex _linalg_det "
        "_linalg_slogdet linalg_qr linalg_householder_product _linalg_svd linalg_pinv linalg_matrix_exp "
        "_upsample_bilinear2d_aa _upsample_bicubic2d_aa _upsample_bilinear2d_aa_backward "
        "_upsample_bicubic2d_aa_backward grid_sampler_2d grid_sampler_3d grid_sampler_2d_backward "
        "grid_sampler_3d_backward"
    )
)


def _is_extern(priced: PricedOp) -> bool:
    op = priced.op
    if priced.basis is Basis.DEFAULT or not op.kind.startswith("aten.") or not op.outputs or EAGER in op.attrs:
        return True
    return priced.timed_as in OF_PRODUCTS or op.kind.removesuffix("_") in _LIBRARY


def _is_pooled_by_library(op: Op, like: Release | None) -> bool:
    """Whether the window has more than 25 elements, or is dilated before PyTorch 2.8 (lowering.py falls back)."""
    if op.kind not in POOLS:
        return False
    dilated = any(integer(step) > 1 for step in op.attrs.get("dilation") or ())
    window = math.prod(map(integer, op.attrs.get("kernel_size") or ()))
    return window > 25 or (dilated and not (like or PRESENT).compiles_dilated_pooling)


def _convolution(priced: PricedOp) -> Iterator[Part]:
    """The product of a library, then the bias as pointwise work (lowering of aten.convolution on GPUs)."""
    bias, library = priced.op.attrs["bias"], extern(priced)
    given = tuple(access for access in library.reads if access.spec.name != bias.name)
    yield replace(library, reads=given, writes=(_product(priced.op),))
    yield _bias(priced, bias)


def is_biased_product(op: Op) -> bool:
    """Whether it is a product of matrices that takes a bias with it, in one kernel of a library."""
    return op.kind == "aten.addmm" and op.attrs.get("beta", 1) == op.attrs.get("alpha", 1) == 1


def _biased_product(priced: PricedOp) -> Iterator[Part]:
    """The product of a library, then the bias as pointwise work (fx_passes/post_grad.py, unfuse_bias_add_to_pointwise).

    Where a reader is not pointwise they are one again (inlining.py).
    """
    op = priced.op
    (alone,) = price_all([replace(op, kind="aten.mm", inputs=op.inputs[1:], outputs=(_product(op),))])
    yield extern(alone)
    yield _bias(priced, op.inputs[0])


def _product(op: Op) -> TensorSpec:
    """The result of a product or a convolution before its bias."""
    return replace(op.outputs[0], name=f"{op.name}.product", storage=op.outputs[0].memory)


def _bias(priced: PricedOp, bias: TensorSpec) -> Part:
    product = _product(priced.op)
    return replace(
        pointwise(priced), label=BIAS, vector=integer(priced.costs[0].vector_flop), special=0,
        reads=tuple(Access(spec=spec, bytes=integer(spec.bytes)) for spec in (product, bias)),
    )  # fmt: skip


def _convolution_backward(priced: PricedOp) -> Iterator[Part]:
    """The products of a library; the bias's gradient is a sum of its own (decomposition of convolution_backward)."""
    op = priced.op
    grad, result = op.inputs[0], op.outputs[-1]
    yield replace(extern(priced), writes=op.outputs[:-1])
    yield Part(
        priced=priced, label="sum", loop=Loop.REDUCTION, outer=integer(result.numel), walk=Walk.TURNED,
        inner=integer(grad.numel) // integer(result.numel), reads=(Access(spec=grad, bytes=integer(grad.bytes)),),
        writes=(result,), vector=integer(priced.costs[-1].vector_flop),
    )  # fmt: skip


#: Pointwise ops that are written out in fp32 and take their input more than once (torch/_decomp/decompositions.py).
_TWICE = frozenset(aten("silu gelu mish hardswish leaky_relu elu softplus log_sigmoid_forward"))
#: Gradients that take what the op was given, behind the gradient, more than once.
_TWICE_BEHIND = frozenset(aten("silu_backward gelu_backward mish_backward hardswish_backward"))


def takes_twice(op: Op, place: int = 0) -> bool:
    """Whether the op is written out as several in fp32, of which more than one reads its input at this place."""
    kind = op.kind.removesuffix("_")
    if kind in _TWICE_BEHIND:
        return place > 0
    if kind in BATCH_NORMS:
        return by_batch(op)
    return kind in _TWICE or kind in (*SOFTMAXES, LAYER_NORM, GROUP_NORM, RMS_NORM)


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
    rank, dims = len(source.shape), dims_of(op)
    walk = walk_of((dim % rank for dim in dims), range(rank)) if dims and rank else Walk.ROWS
    yield replace(part, loop=Loop.REDUCTION, outer=results, inner=inner, walk=walk)


def _pooling(priced: PricedOp) -> Iterator[Part]:
    """A mean over rows for a result of one pixel (decomposition of _adaptive_avg_pool2d), else a window a result."""
    op = priced.op
    if set(op.outputs[0].shape[2:]) == {1}:
        part = next(_reduction(replace(priced, op=replace(op, attrs={**op.attrs, "dim": None}))))
        yield replace(part, priced=priced, reads=tuple(replace(a, gathered=False) for a in part.reads))
    else:
        yield pointwise(priced)


def _max_pooling(priced: PricedOp, like: Release) -> Iterator[Part]:
    """A window a result; its gradient reads the windows over a pixel, or is added up where each maximum lay."""
    parts = _pool_gradient(priced) if priced.op.kind == MAX_POOL_GRADIENT and like.scatters_pool_gradients else ()
    for part in parts or (pointwise(priced),):
        yield _with_offsets(part) if like.keeps_pool_offsets else part


def _pool_gradient(priced: PricedOp) -> Iterator[Part]:
    """Atomic sums in fp32 into a tensor of zeros (decomposition of max_pool2d_with_indices_backward)."""
    op = priced.op
    grad, indices, result = op.inputs[0], op.inputs[-1], op.outputs[0]
    whole = pointwise(priced)
    narrow = result.dtype.itemsize < DType.FLOAT32.itemsize
    name = f"{op.name}.summed"
    total = replace(result, name=name, storage=name, dtype=DType.FLOAT32) if narrow else result
    yield replace(whole, label="full", reads=(), writes=(total,), vector=0, special=0)
    given = (total, _offsets(indices), grad)
    added = replace(op, kind="aten.scatter_add_", inputs=given, outputs=(total,), attrs={"dim": 1})
    yield extern(*price_all([added]))
    if narrow:
        yield replace(whole, label="_to_copy", reads=(Access(spec=total, bytes=integer(total.bytes)),), vector=0)


def _with_offsets(part: Part) -> Part:
    reads = (replace(a, spec=(of := _offsets(a.spec)), bytes=min(a.bytes, integer(of.bytes))) for a in part.reads)
    return replace(part, reads=tuple(reads), writes=tuple(map(_offsets, part.writes)))


def _offsets(spec: TensorSpec) -> TensorSpec:
    """A maximum's place in its window as a byte (_low_memory_max_pool_with_offsets)."""
    return replace(spec, dtype=DType.INT8) if spec.dtype is DType.INT64 else spec


def _statistics(
    priced: PricedOp, outer: int, inner: int, *, walk: Walk, kept: tuple[TensorSpec, ...] = ()
) -> Iterator[Part]:
    """A reduction to statistics of each row, then pointwise work that reads them: softmax and normalizations.

    Half of the arithmetic is done in each. `kept`: results of the op that are statistics.
    """
    part = pointwise(priced)
    op = priced.op
    made = TensorSpec(name=f"{op.name}.statistics", shape=(outer,), dtype=DType.FLOAT32)
    first = replace(
        part, loop=Loop.REDUCTION, outer=outer, inner=inner, walk=walk, writes=(made, *kept),
        vector=part.vector // 2, special=part.special // 2,
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
    rank = len(y.shape) or 1
    walk = walk_of((dim % rank,), range(rank))
    yield from _statistics(priced, integer(y.numel) // max(1, length), length, walk=walk)


def _row_norm(priced: PricedOp) -> Iterator[Part]:
    """Layer, RMS and group normalization, their statistics among the op's results."""
    op = priced.op
    y, kept = op.outputs[0], op.outputs[1:]
    rows = max(1, integer(kept[0].numel) if kept else integer(y.numel) // integer(y.shape[-1]))
    yield from _statistics(priced, rows, integer(y.numel) // rows, walk=Walk.ROWS, kept=kept)


def _batch_norm(priced: PricedOp) -> Iterator[Part]:
    """In training statistics over all but the channels; else pointwise."""
    op = priced.op
    x, y = op.inputs[0], op.outputs[0]
    if not by_batch(op):
        yield replace(pointwise(priced), writes=(y,))
        return
    channels = integer(x.shape[1])
    running = tuple(s for s in (op.attrs.get("running_mean"), op.attrs.get("running_var")) if isinstance(s, TensorSpec))
    kept = tuple(t for t in op.outputs[1:] if integer(t.numel) == channels)
    walk = Walk.TURNED if integer(x.shape[0]) > 1 else Walk.ROWS
    parts = tuple(_statistics(priced, channels, integer(y.numel) // channels, walk=walk, kept=kept))
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
    batch = op.kind in BATCH_NORM_GRADIENTS
    if batch or op.kind == GROUP_NORM_GRADIENT:
        channels = integer(x.shape[1])
    else:
        channels = max([integer(t.numel) for t in others] or [integer(x.shape[-1])])
    weights = next((cost for cost in priced.costs if cost.label.startswith("gain")), None)
    if input_gradient:
        whole = replace(
            priced, op=replace(op, outputs=input_gradient), costs=tuple(c for c in priced.costs if c is not weights)
        )
        rows = channels if batch else _rows(op, integer(x.numel), channels)
        kept = others if batch else ()  # batch norm's sums over each channel are those gradients
        walk = Walk.TURNED if batch else Walk.ROWS
        for part in _statistics(whole, rows, integer(x.numel) // rows, walk=walk, kept=kept):
            yield replace(part, priced=priced)
    if others and not (batch and input_gradient):
        alone = replace(priced, op=replace(op, outputs=others), costs=(weights,) if weights else priced.costs)
        part = pointwise(alone)
        walk = Walk.COLUMNS if op.kind in (LAYER_NORM_GRADIENT, RMS_NORM_GRADIENT) else Walk.TURNED
        yield replace(
            part, priced=priced, loop=Loop.REDUCTION, outer=channels, inner=integer(x.numel) // channels, walk=walk
        )


def _rows(op: Op, numel: int, channels: int) -> int:
    """Rows of a layer or group normalization, from its saved statistics."""
    statistics = [integer(t.numel) for t in op.inputs[2:4] if numel % max(1, integer(t.numel)) == 0]
    return statistics[0] if statistics else max(1, numel // channels)


_LOSSES = aten(
    "mse_loss smooth_l1_loss huber_loss soft_margin_loss mse_loss_backward smooth_l1_loss_backward huber_loss_backward "
    "soft_margin_loss_backward nll_loss_forward nll_loss2d_forward nll_loss_backward nll_loss2d_backward "
    "multi_margin_loss multi_margin_loss_backward multilabel_margin_loss_forward multilabel_margin_loss_backward"
)
_REDUCTIONS = aten(
    "sum nansum prod mean var std var_mean std_mean max min amax amin aminmax argmax argmin any all norm "
    "linalg_vector_norm logsumexp count_nonzero"
)
_LOWERINGS: dict[str, Callable[[PricedOp], Iterable[Part]]] = {
    **dict.fromkeys((*_REDUCTIONS, *_LOSSES), _reduction),
    **dict.fromkeys((*SOFTMAXES, *SOFTMAX_GRADIENTS), _softmax),
    **dict.fromkeys((LAYER_NORM, GROUP_NORM, RMS_NORM), _row_norm),
    **dict.fromkeys(BATCH_NORMS, _batch_norm),
    **dict.fromkeys(
        (*BATCH_NORM_GRADIENTS, LAYER_NORM_GRADIENT, GROUP_NORM_GRADIENT, RMS_NORM_GRADIENT), _norm_backward
    ),
    **dict.fromkeys(ADAPTIVE_AVERAGES, _pooling),
    **dict.fromkeys(LISTS, lambda priced: (pointwise(priced, Loop.LIST),)),
}
