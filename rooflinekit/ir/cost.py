"""What a piece of work costs: matrix products, other arithmetic, and compulsory traffic.

Conventions, valid wherever a count appears:

* A multiply-add is 2 FLOP.
* Matrix work (contractions), vector work (element-wise, reductions, normalization) and special functions (exp, log,
  tanh, erf, sin, rsqrt, division …) are three numbers. One evaluation of a special function counts as 1 FLOP of its
  own class, because a GPU evaluates them in units of their own, at a rate of their own.
* Bytes are compulsory traffic at the kernel's boundary: each tensor read once and written once, in its storage
  format.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

from rooflinekit.errors import InputError
from rooflinekit.ir.sizes import Size, is_count, product, shown, total


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemm:
    """`batch` products of an [m, k] with a [k, n] matrix.

    Where a mask makes part of the work unnecessary (causal attention), `needed` holds the multiply-adds that the
    mathematics asks for, over the whole batch; the shape remains the dense one.

    Raises InputError for a size that is none.
    """

    batch: Size = 1
    m: Size
    n: Size
    k: Size
    needed: Size | None = None  # multiply-adds; None for all of batch·m·n·k

    def __post_init__(self) -> None:
        shape = is_count(self.batch) and is_count(self.m) and is_count(self.n) and is_count(self.k)
        if not (shape and (self.needed is None or is_count(self.needed))):
            raise _no_count(self)

    @property
    def dense_multiply_adds(self) -> Size:
        """Multiply-adds of a kernel that skips nothing: batch·m·n·k."""
        return product((self.batch, self.m, self.n, self.k))

    @property
    def multiply_adds(self) -> Size:
        """Multiply-adds that the mathematics asks for."""
        return self.dense_multiply_adds if self.needed is None else self.needed

    @property
    def flop(self) -> Size:
        """FLOP that the mathematics asks for: 2 a multiply-add."""
        return product((2, self.multiply_adds))

    def map(self, at: Callable[[Size], Size]) -> Gemm:
        """The same product with `at` applied to every size."""
        needed = None if self.needed is None else at(self.needed)
        return Gemm(batch=at(self.batch), m=at(self.m), n=at(self.n), k=at(self.k), needed=needed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Work and compulsory traffic of one kernel, or of several added up. See the module for the conventions.

    Raises InputError for a count that is none, and for what is no tuple of `Gemm`.
    """

    gemms: tuple[Gemm, ...] = ()
    vector_flop: Size = 0  # FLOP outside matrix products
    special_flop: Size = 0  # evaluations of special functions
    read_bytes: Size = 0
    write_bytes: Size = 0
    label: str = ""  # which of the op's kernels: "input gradient", …

    def __post_init__(self) -> None:
        work = is_count(self.vector_flop) and is_count(self.special_flop)
        if not (work and is_count(self.read_bytes) and is_count(self.write_bytes)):
            raise _no_count(self)
        if self.gemms and not (type(self.gemms) is tuple and all(isinstance(gemm, Gemm) for gemm in self.gemms)):
            raise InputError(f"Cost gemms: expected a tuple of Gemm; got {shown(self.gemms)}")
        if type(self.label) is not str:
            raise InputError(f"Cost label: expected a text; got {shown(self.label)}")

    @property
    def matrix_flop(self) -> Size:
        """FLOP of the matrix products that the mathematics asks for."""
        return total(gemm.flop for gemm in self.gemms)

    @property
    def dense_matrix_flop(self) -> Size:
        """FLOP of the matrix products where masked work is done all the same."""
        return total(product((2, gemm.dense_multiply_adds)) for gemm in self.gemms)

    @property
    def flop(self) -> Size:
        """Matrix, vector and special FLOP together."""
        return total((self.matrix_flop, self.vector_flop, self.special_flop))

    @property
    def bytes(self) -> Size:
        """Bytes read and written."""
        return total((self.read_bytes, self.write_bytes))

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            gemms=self.gemms + other.gemms,
            vector_flop=total((self.vector_flop, other.vector_flop)),
            special_flop=total((self.special_flop, other.special_flop)),
            read_bytes=total((self.read_bytes, other.read_bytes)),
            write_bytes=total((self.write_bytes, other.write_bytes)),
            label=self.label or other.label,
        )

    def map(self, at: Callable[[Size], Size]) -> Cost:
        """The same cost with `at` applied to every size."""
        return Cost(
            gemms=tuple(gemm.map(at) for gemm in self.gemms),
            vector_flop=at(self.vector_flop),
            special_flop=at(self.special_flop),
            read_bytes=at(self.read_bytes),
            write_bytes=at(self.write_bytes),
            label=self.label,
        )


def _no_count(record: Gemm | Cost) -> InputError:
    """The error that names the first field which counts nothing."""
    counts = ((field.name, getattr(record, field.name)) for field in fields(record))
    name, value = next(
        (name, value) for name, value in counts
        if name not in ("gemms", "label") and not (is_count(value) or (name == "needed" and value is None))
    )  # fmt: skip
    return InputError(
        f"{type(record).__name__} {name}: expected a number of 0 or more, or a formula of sizes; got {shown(value)}"
    )
