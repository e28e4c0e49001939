"""A transformer with mixtures of experts: eight layers, 64 experts each, of which every token goes to two.

As GShard and Switch do it, every expert takes as many rows as fit a buffer of capacity 1.25 times the mean; tokens
beyond that are left out. Tokens [batch, seq] in, scores of the next one [batch, seq, 32000] out.
"""

import torch
from torch import nn
from torch.nn import functional

WIDTH, HIDDEN, HEADS, VOCABULARY = 1024, 2816, 16, 32000


class Mixture(nn.Module):
    """Experts as weights [experts, …]; rows are put into a buffer [experts, capacity, width]."""

    def __init__(self, experts: int = 64, chosen: int = 2) -> None:
        super().__init__()
        self.experts, self.chosen = experts, chosen
        self.router = nn.Linear(WIDTH, experts, bias=False)
        self.gate = nn.Parameter(torch.empty(experts, WIDTH, HIDDEN))
        self.up = nn.Parameter(torch.empty(experts, WIDTH, HIDDEN))
        self.down = nn.Parameter(torch.empty(experts, HIDDEN, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = x.reshape(-1, WIDTH)
        rows = tokens.shape[0] * self.chosen
        capacity = rows * 5 // (4 * self.experts)
        share, expert = self.router(tokens).softmax(-1).topk(self.chosen, -1)
        first = functional.one_hot(expert.flatten(), self.experts)
        place = ((first.cumsum(0) - 1) * first).sum(-1)  # of a row in its expert's buffer
        slot = expert.flatten() * capacity + place.clamp(max=capacity - 1)
        buffer = x.new_zeros(self.experts * capacity, WIDTH)
        buffer = buffer.index_copy(0, slot, tokens.repeat_interleave(self.chosen, 0))
        given = buffer.view(self.experts, capacity, WIDTH)
        inner = functional.silu(torch.bmm(given, self.gate)) * torch.bmm(given, self.up)
        result = torch.bmm(inner, self.down).view(-1, WIDTH)[slot]
        share = share.unsqueeze(-1) * (place < capacity).view(-1, self.chosen, 1)
        return (result.view(-1, self.chosen, WIDTH) * share).sum(1).view_as(x)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (layer(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        return self.out(functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention, self.mixture = Attention(), Mixture()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.before(x))
        return x + self.mixture(self.between(x))


class Transformer(nn.Module):
    def __init__(self, layers: int = 8) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))
