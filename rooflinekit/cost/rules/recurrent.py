"""Recurrent layers as one operator.

x is [t, b, i] or [b, t, i]; the weights of a layer and direction are [g·h, i], [g·h, h or p] and [p, h].

g gates: 4 (LSTM), 3 (GRU), 1. The input's product runs over the whole sequence, the state's once a time step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rooflinekit.cost.table import aten, family, reads, rule, traffic, work, writes
from rooflinekit.ir.cost import Cost, Gemm
from rooflinekit.ir.op import Family, Op, TensorSpec
from rooflinekit.ir.sizes import Size, ceil_div, product

#: Parts of the work, by the labels of their costs: the inputs' products of all steps at once, and step after step.
INPUTS, CHAIN = "inputs of all steps", "chain"

FORWARD, BACKWARD = aten("_cudnn_rnn miopen_rnn"), aten("_cudnn_rnn_backward miopen_rnn_backward")
#: Cells without their products.
CELLS = aten("_thnn_fused_lstm_cell _thnn_fused_gru_cell")
CELL_GRADIENTS = aten("_thnn_fused_lstm_cell_backward_impl _thnn_fused_gru_cell_backward")

RELU, TANH, LSTM, GRU = range(4)  # modes of cuDNN
#: (Gates, vector FLOP, special functions a state and step without biases, vector FLOP of backward.) A sigmoid is 2 and
#: 2, as everywhere.
CELL_WORK = {
    RELU: (1, 2, 0, 2),  # sum of two products, relu; backward: select, sum for the bias
    TANH: (1, 1, 1, 4),  # backward: g·(1-y·y), sum for the bias
    # four sums, three sigmoids, c = f·c + i·g, h = o·tanh(c); backward: o 1, c 5, i g f c 4, slopes 3·3 + 3, sums 4
    LSTM: (4, 14, 8, 26),
    # two sums, n = tanh(x + r·h), two sigmoids, (1-z)·n + z·h
    # backward: n 2, z 2, h 1, r 1, hn 1, slopes 2·3 + 3, sums 4
    GRU: (3, 12, 5, 20),
}


def _layers(op: Op) -> Iterator[tuple[TensorSpec, ...]]:
    """The weight matrices of each layer and direction: input, state, and projection if there is one."""
    weights, each = op.attrs["weight"], op.attrs["weight_stride0"]
    for i in range(0, len(weights), each):
        yield tuple(w for w in weights[i : i + each] if len(w.shape) == 2)


def steps_and_batch(op: Op, x: TensorSpec) -> tuple[Size, Size]:
    """Length of the sequence and batch; of packed ones (how many, steps of the longest) the mean over the steps."""
    if sizes := op.attrs.get("batch_sizes"):
        return sizes[1], ceil_div(x.shape[0], sizes[1])
    return (x.shape[1], x.shape[0]) if op.attrs["batch_first"] else (x.shape[0], x.shape[1])


def _rows(op: Op, x: TensorSpec) -> Size:
    """Steps of all sequences together."""
    return x.shape[0] if op.attrs.get("batch_sizes") else product(steps_and_batch(op, x))


def _states(op: Op, x: TensorSpec) -> Size:
    """States computed: steps · batch · layers · directions · size."""
    return product((_rows(op, x), len(tuple(_layers(op))), op.attrs["hidden_size"]))


@rule(*FORWARD, timed_as=Family.RECURRENCE)
def recurrent(op: Op) -> list[Cost]:
    """2·t·b·g·h·(i + h) a layer and direction, or with a projection to p 2·t·b·(g·h·(i + p) + h·p).

    A state adds: LSTM 14 and 8 special functions, GRU 12 and 5, tanh 1 and 1, ReLU 2; each gate two biases, if any.
    """
    x = op.inputs[0]
    (t, b), rows = steps_and_batch(op, x), _rows(op, x)
    inputs, chain, of_inputs = [], [], {x.name: x}
    for whole, *stepwise in _layers(op):
        inputs.append(Gemm(m=rows, n=whole.shape[0], k=whole.shape[1]))
        chain += [Gemm(batch=t, m=b, n=w.shape[0], k=w.shape[1]) for w in stepwise]
        of_inputs[whole.name] = whole
    others = [spec for spec in op.inputs if spec.name not in of_inputs]
    gates = _gates(_states(op, x), op.attrs["mode"], biased=op.attrs["weight_stride0"] >= 4)
    return [
        Cost(gemms=tuple(inputs), label=INPUTS) + reads(of_inputs.values()),
        Cost(gemms=tuple(chain), label=CHAIN) + gates + reads(others) + writes(op.outputs),
    ]


def _gates(states: Size, mode: int, *, biased: bool) -> Cost:
    gates, vector, special, _ = CELL_WORK[mode]
    return work(states, vector + 2 * gates * biased, special)


_OF_A_CELL = "The gates of a cell, their products being ops of their own"
family(
    lambda op, mode: _gates(op.outputs[0].numel, mode, biased=op.attrs.get("input_bias") is not None) + traffic(op),
    {
        "_thnn_fused_lstm_cell": (LSTM, f"{_OF_A_CELL}: 14 and 8 a state, and two biases a gate."),
        "_thnn_fused_gru_cell": (GRU, f"{_OF_A_CELL}: 12 and 5 a state, and two biases a gate."),
    },
)


@rule("aten._thnn_fused_lstm_cell_backward_impl")
def lstm_cell_backward(op: Op) -> list[Cost]:
    """tanh(c) again, o 1, c 5, i, g, f and the cell before 4, slopes 3·3 + 3: 22 and 1 a state; a bias: a sum."""
    gates, cell, bias = op.outputs
    return [work(cell.numel, 22, 1) + reads(op.inputs) + writes((gates, cell)), *_bias_sums((gates,), (bias,))]


@rule("aten._thnn_fused_gru_cell_backward")
def gru_cell_backward(op: Op) -> list[Cost]:
    """z 5, the state 1, n 5, its part of the state 1, r 4: 16 a state; with biases two sums over the batch."""
    inputs, hidden, state, *biases = op.outputs
    return [
        work(state.numel, 16) + reads(op.inputs) + writes((inputs, hidden, state)),
        *_bias_sums((inputs, hidden), biases),
    ]


def _bias_sums(gates: Sequence[TensorSpec], biases: Sequence[TensorSpec]) -> list[Cost]:
    """Gradients of the gates summed over the batch, where there is a bias."""
    return [
        Cost(vector_flop=one.numel, label="bias gradient") + reads((one,)) + writes((bias,))
        for one, bias in zip(gates, biases, strict=True)
        if bias.numel != 0
    ]


@rule(*BACKWARD, timed_as=Family.RECURRENCE)
def recurrent_backward(op: Op) -> list[Cost]:
    """Each product of the forward pass for its weight, over all steps, and for its input: the state's step by step.

    The first layer's input has none where it needs no gradient.
    """
    x = op.inputs[0]
    (t, b), rows = steps_and_batch(op, x), _rows(op, x)
    wants_input, _, _, wants_weights = op.attrs["output_mask"]
    directions = 2 if op.attrs["bidirectional"] else 1
    chain, inputs, weights = [], [], []
    for i, (whole, *stepwise) in enumerate(_layers(op)):
        if wants_input or i >= directions:
            inputs.append(Gemm(m=rows, n=whole.shape[1], k=whole.shape[0]))
        chain += [Gemm(batch=t, m=b, n=w.shape[1], k=w.shape[0]) for w in stepwise]
        weights += [Gemm(m=w.shape[0], n=w.shape[1], k=rows) for w in (whole, *stepwise)]
    gates = work(_states(op, x), CELL_WORK[op.attrs["mode"]][3])
    given = {spec.memory for spec in op.attrs["weight"]}
    of_weights = [spec for spec in op.outputs if spec.shape in {w.shape for w in op.attrs["weight"]}]
    others = [spec for spec in op.outputs if spec not in of_weights]
    of_x = [spec for spec in others if spec.shape == x.shape][:1]
    of_states = [spec for spec in others if spec not in of_x]
    costs = [Cost(gemms=tuple(chain), label=CHAIN) + gates + reads(op.inputs) + writes(of_states)]
    if inputs:
        costs.append(Cost(gemms=tuple(inputs), label="input gradient") + writes(of_x if wants_input else ()))
    if wants_weights:
        used = [spec for spec in op.inputs if spec.memory not in given]
        costs.append(Cost(gemms=tuple(weights), label="weight gradient") + reads(used) + writes(of_weights))
    return costs
