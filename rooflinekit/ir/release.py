"""Releases of PyTorch, and what they did otherwise than today's."""

from __future__ import annotations

import re
from typing import NamedTuple

from rooflinekit.errors import InputError

_FIRST = (1, 0)
_LAST_PATCH = 99


class Release(NamedTuple):
    """A release by the parts of its number, which compare as such numbers do; "2.5" is the last of its patches.

    >>> Release.parse("1.13.1+cu117") < Release.parse("2.0")
    True
    """

    major: int
    minor: int
    patch: int = _LAST_PATCH

    @classmethod
    def parse(cls, text: object) -> Release:
        """The release that "1.12", "2.4.0" or "1.13.1+cu117" names. Raises InputError for anything else."""
        found = re.fullmatch(r"v?(\d+)\.(\d+)(?:\.(\d+))?([.+a-z].*)?", text.strip()) if isinstance(text, str) else None
        if found is None or (release := cls(*(int(part) for part in found.groups()[:3] if part))) < _FIRST:
            raise InputError(f"like: expected a release of PyTorch from 1.0 on, such as '1.12' or '2.4'; got {text!r}")
        return release

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}" + ("" if self.patch == _LAST_PATCH else f".{self.patch}")

    @property
    def has_flash_2(self) -> bool:
        """Whether its flash attention is FlashAttention 2 (2.2; before, FlashAttention 1)."""
        return self >= (2, 2)

    def prefers_cudnn(self, generation: int) -> bool:
        """Whether it takes cuDNN's attention first on GPUs of this generation of compute capability.

        From 2.11 on, whose wheels bring a cuDNN above 9.15, on 9 and 10; in 2.5.0 on Hopper, which 2.5.1 took back.
        """
        return (self >= (2, 11) and generation in (9, 10)) or (self == (2, 5, 0) and generation == 9)

    @property
    def fuses_attention(self) -> bool:
        """Whether scaled_dot_product_attention is one kernel (2.0: torch.nn.functional has it for the first time)."""
        return self >= (2, 0)

    @property
    def fuses_rms_norm(self) -> bool:
        """Whether rms_norm is one kernel on CUDA (2.9; before, it is written out)."""
        return self >= (2, 9)

    @property
    def foreach_optimizers(self) -> bool:
        """Whether optimizers on CUDA take all tensors at once unless told otherwise (2.0: the default of `foreach`)."""
        return self >= (2, 0)

    @property
    def drops_gradients(self) -> bool:
        """Whether zero_grad() sets gradients to None unless told otherwise (2.0: the default of `set_to_none`)."""
        return self >= (2, 0)

    @property
    def compiles(self) -> bool:
        """Whether there is torch.compile (2.0)."""
        return self >= (2, 0)

    @property
    def reorders_loops(self) -> bool:
        """Whether inductor turns loops over so that more kernels fuse (2.8: the default; 2.5 has it, switched off)."""
        return self >= (2, 8)

    @property
    def compiles_dilated_pooling(self) -> bool:
        """Whether inductor makes the kernel of a maximum over a dilated window (2.8; before, the library's runs)."""
        return self >= (2, 8)

    @property
    def shares_concatenated(self) -> bool:
        """Whether inductor stores a concatenation of which others read an input too (2.12; before, each reads it)."""
        return self >= (2, 12)

    def tf32(self, allowed: bool | None) -> bool | None:
        """Where fp32 products may run as tf32: as allowed; by default nowhere before 1.7, everywhere up to 1.11.

        tf32 came with 1.7, switched on; 1.12 switched `torch.backends.cuda.matmul.allow_tf32` off.
        """
        if allowed is not None or self >= (1, 12):
            return allowed
        return self >= (1, 7)
