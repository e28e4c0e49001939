"""One decoding step of a Llama-like model with 7 billion parameters, built from a configuration: nothing is downloaded.

Build it on the meta device, and it takes no memory either:

    with torch.device("meta"):
        step = DecodingStep()
"""

import torch
from torch import nn
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

LAYERS, HEADS, WIDTH = 32, 32, 4096


class DecodingStep(nn.Module):
    """The next token of each sequence: token [batch, 1], cache of [batch, 32, context, 128] keys and values a layer."""

    def __init__(self) -> None:
        super().__init__()
        config = LlamaConfig(
            hidden_size=WIDTH, intermediate_size=11008, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
            vocab_size=32000, max_position_embeddings=4096,
        )  # fmt: skip
        self.model = LlamaForCausalLM(config)

    def forward(self, token: torch.Tensor, cache: list[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
        held = DynamicCache()
        for layer, (keys, values) in enumerate(cache):
            held.update(keys, values, layer)
        logits: torch.Tensor = self.model(token, past_key_values=held, use_cache=True).logits
        return logits
