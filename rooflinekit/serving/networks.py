"""Feed-forward networks of a layer as ops of one GPU: dense, or experts that are shared out."""

from __future__ import annotations

from dataclasses import dataclass

from rooflinekit.ir.op import DType, TensorSpec
from rooflinekit.ir.sizes import Size, ceil_div, product
from rooflinekit.serving.decoder import Decoder
from rooflinekit.serving.tape import Tape
from rooflinekit.serving.touched import touched_experts

#: Last part of the module in which all groups exchange tokens.
EXCHANGE = "exchange"


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """One GPU's part. The experts are divided over ep of the tp · dp GPUs, the others share each."""

    decoder: Decoder
    tape: Tape
    tp: int
    ep: int
    dp: int  # groups of tp GPUs, each with sequences of its own

    def plain(self, x: TensorSpec, ffn: int, name: str = "") -> TensorSpec:
        """[tokens, hidden] → the same, not yet summed over GPUs."""
        d, tape, width = self.decoder, self.tape, ffn // self.tp
        h = tape.linear(x, f"{name}up", (1 + d.gated) * width)
        return tape.linear(self._activated(h, width), f"{name}down", d.hidden)

    def _activated(self, h: TensorSpec, width: int) -> TensorSpec:
        kind = "serving.gated_activation" if self.decoder.gated else "serving.activation"
        return self.tape.run(kind, (h,), self.tape.tensor(*h.shape[:-1], width))

    def experts(self, x: TensorSpec) -> TensorSpec:
        """[tokens, hidden] → the same, summed over GPUs.

        Each GPU of a group has all its tokens, as attention leaves them; those of other groups are gathered, and the
        results of its experts sent back.
        """
        d, tape = self.decoder, self.tape
        result = self._chosen(x)
        if self.dp > 1:
            result = self._exchanged(result, x.shape[0])
        if d.shared_ffn:
            shared = self.plain(x, d.shared_ffn, "shared.")
            if self.dp > 1:
                shared = tape.summed(shared, self.tp)
            result = tape.run("aten.add", (result, shared), tape.tensor(*x.shape), alpha=1)
        return result if self.dp > 1 else tape.summed(result, self.tp)

    def _chosen(self, x: TensorSpec) -> TensorSpec:
        """Each token through its experts of this GPU, whose weights are read as far as some token needs them.

        Experts are chosen evenly. What the tokens of other GPUs' experts lack here comes with the sum over GPUs.
        """
        d, tape, tokens = self.decoder, self.tape, x.shape[0]
        chosen = tape.run(
            "aten._softmax", (tape.plain(x, "router", d.experts),), tape.tensor(tokens, d.experts), dim=-1
        )
        picked = tape.tensor(tokens, d.experts_per_token)
        index = TensorSpec(name=f"i{len(tape.ops)}", shape=picked.shape, dtype=DType.INT64)
        tape.run("aten.topk", (chosen,), picked, index, k=d.experts_per_token, dim=-1, largest=True, sorted=True)
        everyone = product((tokens, self.dp))
        touched = touched_experts(d.experts, d.experts_per_token, everyone, self.ep)
        rows = ceil_div(product((everyone, d.experts_per_token)), self.ep)
        each = ceil_div(rows, touched)
        grouped = tape.run("aten.index_select", (x, index), tape.tensor(touched, each, d.hidden), dim=0)
        width, held = d.ffn * self.ep // (self.tp * self.dp), d.experts // self.ep
        h = tape.experts(grouped, "experts.up", (1 + d.gated) * width, held, rows)
        y = tape.experts(self._activated(h, width), "experts.down", d.hidden, held, rows)
        return tape.run("serving.combine_experts", (y, picked, index), tape.tensor(everyone, d.hidden))

    def _exchanged(self, x: TensorSpec, tokens: Size) -> TensorSpec:
        """The tokens of all groups, gathered before the experts and summed where they came from behind them.

        Both together move what an all-reduce of all tokens over all GPUs does (its two halves are a reduce-scatter and
        an all-gather), and are timed as one: vLLM's and TensorRT-LLM's default. An all-to-all moves less where each
        token passes few of many GPUs.
        """
        tape, module = self.tape, self.tape.module
        tape.module = f"{module}.{EXCHANGE}"
        everyone = tape.summed(x, self.tp * self.dp)
        tape.module = module
        return TensorSpec(name=f"{everyone.name} own", shape=(tokens, self.decoder.hidden), dtype=everyone.dtype,
                          storage=everyone.memory)  # fmt: skip
