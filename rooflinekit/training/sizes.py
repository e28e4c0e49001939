"""What one GPU has of a decoder: its part of heads and widths, of tokens, layers and experts."""

from __future__ import annotations

from dataclasses import dataclass

from rooflinekit.errors import InputError
from rooflinekit.serving.decoder import Decoder


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A micro-batch on one GPU of groups that share each layer: `tensor` its heads and widths, `context` its tokens.

    `sequence`: norms, dropout and residual additions on 1/tensor of the tokens. `expert`: GPUs that share out the
    experts, `expert_tensor` of them each expert.

    Raises InputError for sizes that do not divide.
    """

    decoder: Decoder
    micro_batch: int
    seq: int
    tensor: int = 1
    sequence: bool = False
    context: int = 1
    expert: int = 1
    expert_tensor: int = 1

    def __post_init__(self) -> None:
        d = self.decoder
        for what, size, by in (
            ("heads", d.heads, self.tensor),
            ("ffn", d.ffn if not d.experts else d.ffn * self.tensor, self.tensor),
            ("seq", self.seq, self.context * (2 if self.context > 1 else 1)),
            ("seq", self.seq // self.context, self.tensor if self.sequence else 1),
            ("experts", d.experts, self.expert),
        ):
            if size % by:
                raise InputError(f"{d.name}: {what} {size} cannot be cut into {by} equal parts")

    @property
    def tokens(self) -> int:
        """That pass the products of a GPU."""
        return self.micro_batch * self.seq // self.context

    @property
    def rows(self) -> int:
        """Tokens that pass norms, dropout and residual additions."""
        return self.tokens // (self.tensor if self.sequence else 1)

    @property
    def heads(self) -> int:
        """Of queries on a GPU."""
        return self.decoder.heads // self.tensor

    @property
    def kv_heads(self) -> int:
        """Of keys on a GPU, at least one."""
        return max(1, self.decoder.kv_heads // self.tensor)

    @property
    def vocab(self) -> int:
        """Rows of the embedding on a GPU, filled up to a whole number."""
        return -(-self.decoder.vocab // self.tensor)

    @property
    def boundary_bytes(self) -> int:
        """Of an activation in 16 bits as a layer is given it, all tokens of the tensor group."""
        return 2 * self.tokens * self.decoder.hidden
