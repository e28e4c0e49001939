"""Low-rank adapters (LoRA) that an engine serves beside the matrices of its layers."""

from __future__ import annotations

from dataclasses import dataclass

from rooflinekit.errors import InputError
from rooflinekit.ir.arguments import checked
from rooflinekit.ir.sizes import shown, whole

_MOST = 2**16


@checked
@dataclass(frozen=True, slots=True, kw_only=True)
class Adapters:
    """So many adapters of one rank on all matrices of the layers' attention and networks, but experts and routers.

    number: of adapters in the GPU's memory (`--max-loras`), of which each sequence uses one, chosen evenly. rank: of
    each. Behind each product of k numbers to n, the tokens of each adapter that some sequence uses pass its
    [k, rank] and [rank, n], in 16 bits: two grouped products (Punica, arXiv 2310.18547; S-LoRA, arXiv 2311.03285).
    Under tensor parallelism the adapter is cut as the matrix is; the sum of its `rank` numbers over GPUs is left out.

    Raises InputError for a number that is not above 0.
    """

    number: int
    rank: int = 16

    def __post_init__(self) -> None:
        for name in ("number", "rank"):
            value = whole(getattr(self, name))
            if value is None or not 1 <= value <= _MOST:
                raise InputError(f"adapters {name}: expected 1 to {_MOST:,}; got {shown(getattr(self, name))}")

    def to_dict(self) -> dict[str, int]:
        """Ready for JSON."""
        return {"number": self.number, "rank": self.rank}
