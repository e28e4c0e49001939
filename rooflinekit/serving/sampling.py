"""How an engine chooses a sequence's next token of its logits: the largest, or one drawn of the most likely ones."""

from __future__ import annotations

from typing import Literal

from rooflinekit.ir.op import DType, TensorSpec
from rooflinekit.serving.tape import Tape

Sampling = Literal["greedy", "sorted", "published"]

_FP32, _BOOL, _INT = DType.FLOAT32, DType.BOOL, DType.INT64


def largest_of(tape: Tape, logits: TensorSpec) -> TensorSpec:
    """[sequences, vocabulary] → the place of the largest."""
    place = tape.new(logits.shape[0], dtype=_INT)
    return tape.run("aten.argmax", (logits,), place, dim=-1, keepdim=False)


def drawn_of(tape: Tape, logits: TensorSpec) -> TensorSpec:
    """[sequences, vocabulary] → a token each, drawn of those within top-k and top-p, as PyTorch's kernels do it.

    vLLM's own (0.11.1, v1/sample/ops/topk_topp_sampler.py: apply_top_k_top_p and random_sample, which run unless
    VLLM_USE_FLASHINFER_SAMPLER is set): logits in 32 bits, by the temperature, sorted; those outside the top k are
    masked, then by a running sum of probabilities those outside the top p; put back to their places; the largest of
    probability over an exponential random number. Every GPU that shares the layers does so for all of the vocabulary.
    """
    shape = logits.shape

    def step(kind: str, *inputs: TensorSpec, dtype: DType = _FP32, **attrs: object) -> TensorSpec:
        return tape.run(kind, inputs, tape.new(*shape, dtype=dtype), **attrs)

    heated = step("aten.mul", step("aten._to_copy", logits))
    places = tape.new(*shape, dtype=_INT)
    ordered = tape.run("serving.sort_rows", (heated,), tape.new(*shape, dtype=_FP32), places)
    likely = step("aten.masked_fill", ordered, step("aten.lt", ordered, dtype=_BOOL))
    summed = step("aten.cumsum", step("aten._softmax", likely, dim=-1), dim=-1)
    likely = step("aten.masked_fill", likely, step("aten.le", summed, dtype=_BOOL))
    back = step("aten.scatter", likely, places, likely, dim=-1)
    chance = step("aten._softmax", back, dim=-1)
    return largest_of(tape, step("aten.div", chance, step("aten.exponential")))
