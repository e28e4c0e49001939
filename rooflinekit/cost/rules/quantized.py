"""Products and conversions of quantized numbers. Packed weights are read at their packed size.

Quantizing a number: times 1/scale, rounded, plus the zero point, two comparisons: 5. Back: minus the zero point, times
the scale: 2.
"""

from __future__ import annotations

from rooflinekit.cost.table import Rule, an_element, reads, rule, traffic, writes
from rooflinekit.ir.cost import Cost, Gemm
from rooflinekit.ir.op import Op
from rooflinekit.ir.sizes import floor_div, product, total
from rooflinekit.ir.tensor import TensorSpec

_QUANTIZE, _DEQUANTIZE = 5, 2


@rule("aten._scaled_mm")
def scaled_mm(op: Op) -> Cost:
    """[m, k] × [k, n] of 8-bit numbers: 2·m·k·n; scales 1 an output element, a bias 1."""
    a, b = op.inputs[:2]
    m, k = a.shape
    (y,) = op.outputs[:1]
    operations = 2 if op.attrs.get("bias") is not None else 1
    return Cost(gemms=(Gemm(m=m, n=b.shape[1], k=k),), vector_flop=product((operations, y.numel))) + traffic(op)


@rule("aten._scaled_grouped_mm")
def scaled_grouped_mm(op: Op) -> Cost:
    """2·m·k·n of all groups together, as in `_grouped_mm`; a scale 1 an output element."""
    a, b = op.inputs[:2]
    batch = a.shape[0] if len(a.shape) == len(b.shape) == 3 else 1
    gemm = Gemm(batch=batch, m=a.shape[-2], n=b.shape[-1], k=a.shape[-1])
    return Cost(gemms=(gemm,), vector_flop=op.outputs[0].numel) + traffic(op)


def activation(op: Op) -> tuple[int, int]:
    """Vector FLOP and special functions an element of the activation in a product: ReLU 1, x·sigmoid(x) 3 and 2."""
    return {"relu": (1, 0), "silu": (3, 2)}.get(op.attrs.get("activation") or "none", (0, 0))


def _linear(x: TensorSpec, y: TensorSpec) -> Gemm:
    """[rows, k] × [k, n], by input and output: a packed weight does not show its shape."""
    n = y.shape[-1]
    return Gemm(m=floor_div(y.numel, n), n=n, k=x.shape[-1])


@rule("aten._weight_int8pack_mm", "aten._mixed_dtypes_linear")
def scaled_after_the_product(op: Op) -> Cost:
    """[m, k] × a weight of integers [n, k]: 2·m·k·n; scale 1 an output element, bias 1, activation."""
    (y,) = op.outputs
    vector, special = activation(op)
    vector += 2 if op.attrs.get("bias") is not None else 1
    work = Cost(vector_flop=product((vector, y.numel)), special_flop=product((special, y.numel)))
    return Cost(gemms=(_linear(op.inputs[0], y),)) + work + traffic(op)


@rule("aten._weight_int4pack_mm", "aten._weight_int4pack_mm_for_cpu")
def scaled_before_the_product(op: Op) -> Cost:
    """[m, k] × a weight of 4 bits [n, k]: 2·m·k·n; scale and zero point of its group 2 for each weight."""
    gemm = _linear(op.inputs[0], op.outputs[0])
    return Cost(gemms=(gemm,), vector_flop=product((_DEQUANTIZE, gemm.n, gemm.k))) + traffic(op)


@rule("bitsandbytes.int8_scaled_mm", "bitsandbytes.int8_linear_matmul")
def int8_product(op: Op) -> Cost:
    """[m, k] × a weight of 8-bit integers [n, k]: 2·m·k·n; where rows and columns are scaled 2 an output, bias 1."""
    (y,) = op.outputs[:1]
    operations = 0 if op.kind.endswith("matmul") else 2 + (op.attrs.get("bias") is not None)
    return Cost(gemms=(_linear(op.inputs[0], y),), vector_flop=product((operations, y.numel))) + traffic(op)


@rule("quantized.linear_dynamic")
def dynamic_linear(op: Op) -> Cost:
    """2·m·k·n; the range of the input 2 an element and its 8-bit form 5; back and the bias 3 an output element."""
    (x,), (y,) = op.inputs, op.outputs
    gemm = _linear(x, y)
    flop = total((product((2 + _QUANTIZE, x.numel)), product((_DEQUANTIZE + 1, y.numel))))
    return Cost(gemms=(gemm,), vector_flop=flop, read_bytes=product((gemm.n, gemm.k))) + traffic(op)


def _per_element(flop: int) -> Rule:
    def price(op: Op) -> Cost:
        return Cost(vector_flop=product((flop, op.inputs[0].numel))) + traffic(op)

    price.__doc__ = an_element(flop, 0)
    return price


#: kind: vector FLOP an element of the input
_PER_ELEMENT = {
    "quantized_decomposed.quantize_per_tensor": _QUANTIZE,
    "quantized_decomposed.quantize_per_channel": _QUANTIZE,
    "quantized_decomposed.quantize_per_channel_group": _QUANTIZE,
    "quantized_decomposed.quantize_per_token": _QUANTIZE,
    "quantized_decomposed.dequantize_per_tensor": _DEQUANTIZE,
    "quantized_decomposed.dequantize_per_channel": _DEQUANTIZE,
    "quantized_decomposed.dequantize_per_channel_group": _DEQUANTIZE,
    "quantized_decomposed.dequantize_per_token": _DEQUANTIZE,
    "quantized_decomposed.choose_qparams": 2,  # the smallest and the largest
    "quantized_decomposed.choose_qparams_symmetric": 2,
    "quantized_decomposed.choose_qparams_per_token": 2,
    "quantized_decomposed.choose_qparams_per_token_asymmetric": 2,
    "bitsandbytes.int8_vectorwise_quant": 2 + _QUANTIZE,  # the largest of a row first
    # there and back; the two comparisons, joined, are the mask
    "aten.fake_quantize_per_tensor_affine_cachemask": _QUANTIZE + _DEQUANTIZE + 1,
    "aten.fake_quantize_per_channel_affine_cachemask": _QUANTIZE + _DEQUANTIZE + 1,
    "aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams": _QUANTIZE + _DEQUANTIZE + 1,
    "aten.fake_quantize_per_tensor_affine_cachemask_backward": 1,  # times the mask
    "aten.fake_quantize_per_channel_affine_cachemask_backward": 1,
}
for _kind, _flop in _PER_ELEMENT.items():
    rule(_kind)(_per_element(_flop))


@rule("aten._fused_moving_avg_obs_fq_helper")
def observed_fake_quantization(op: Op) -> list[Cost]:
    """The smallest and the largest number 2 an element; then, with the scale that follows, there and back: 8."""
    x = op.inputs[0]
    there_and_back = product((_QUANTIZE + _DEQUANTIZE + 1, x.numel))
    return [
        Cost(vector_flop=product((2, x.numel)), label="range") + reads((x,)),
        Cost(vector_flop=there_and_back, label="quantization") + reads((x,)) + writes(op.outputs),
    ]
