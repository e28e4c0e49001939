"""Kernels as columns: what each computes and moves, in arrays, so that a million are timed as quickly as one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any, Self, TypeAlias, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rooflinekit.ir.cost import Gemm
from rooflinekit.ir.op import Family, Math
from rooflinekit.ir.points import Column, Number
from rooflinekit.kernels.algorithms import PRODUCT, Algorithm
from rooflinekit.kernels.kernel import Kernel

Floats: TypeAlias = NDArray[np.float64]
T = TypeVar("T")


def _numbered(
    values: Sequence[T], count: int, each: NDArray[np.int64] | None
) -> tuple[tuple[T, ...], NDArray[np.int64]]:
    """The distinct values, and the place among them of each of `count` rows.

    Each value is of as many rows, one after the other; `each`: of how many.
    """
    places = {value: i for i, value in enumerate(dict.fromkeys(values))}
    codes = np.array([places[value] for value in values], dtype=np.int64)
    return tuple(places), np.repeat(codes, count // max(1, len(values)) if each is None else each)


_ONCE = ("passes", "warps", "links", "starts", "streamed")  # columns that are 1 where nothing is said


class Columns:
    """A record of arrays of one length, and of what is the same for all of their rows."""

    __slots__ = ()

    def with_columns(self, change: Callable[[NDArray[Any]], NDArray[Any]]) -> Self:
        """The same record with each array changed."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}  # type: ignore[arg-type]
        return type(self)(**{n: change(v) if isinstance(v, np.ndarray) else v for n, v in values.items()})

    def where(self, chosen: Any) -> Self:
        """The chosen rows."""
        return self.with_columns(lambda column: column[chosen])

    def and_also(self, others: Self) -> Self:
        """The rows of this record, followed by those of the others."""
        names = [f.name for f in fields(self)]  # type: ignore[arg-type]
        return type(self)(**{name: np.concatenate((getattr(self, name), getattr(others, name))) for name in names})


@dataclass(frozen=True, slots=True, kw_only=True)
class Products(Columns):
    """Matrix products, each `batch` times [m, k] × [k, n]; `kernel` is the row of `KernelBatch` that it belongs to."""

    kernel: NDArray[np.int64]
    batch: Floats
    m: Floats
    n: Floats
    k: Floats
    executed: Floats  # share of the multiply-adds that is executed: below 1 where a mask leaves blocks out
    padded: Floats  # by how much channels are filled up, so that vectors of them can be loaded
    algorithms: tuple[Algorithm, ...]  # that occur
    algorithm: NDArray[np.int64]  # which of them each is

    @property
    def flop(self) -> Floats:
        """FLOP that are executed."""
        return 2 * self.batch * self.m * self.n * self.k * self.executed

    @property
    def attend(self) -> NDArray[np.bool_]:
        """Whether each is one of fused attention's."""
        return self.of_algorithm(lambda one: one.shape == "queries")

    @classmethod
    def of(
        cls, kernel: ArrayLike, *, algorithm: Algorithm | Sequence[Algorithm] = PRODUCT,
        each: NDArray[np.int64] | None = None, **columns: ArrayLike,
    ) -> Self:  # fmt: skip
        """Columns m, n and k of one length, and batch, executed and padded where they are not 1.

        algorithm: one for all, or each for so many in a row; `each`: for how many.
        """
        index = np.asarray(kernel, dtype=np.int64)
        several = (algorithm,) if isinstance(algorithm, Algorithm) else algorithm
        distinct, which = _numbered(several, index.size, each)
        values: dict[str, Any] = {"batch": 1, "executed": 1, "padded": 1, **columns}
        return cls(
            kernel=index,
            algorithms=distinct or (PRODUCT,),
            algorithm=which,
            **{name: np.broadcast_to(np.asarray(one, dtype=float), index.shape) for name, one in values.items()},
        )

    @classmethod
    def none(cls) -> Self:
        """No products."""
        empty = np.zeros(0)
        return cls.of(empty, m=empty, n=empty, k=empty)

    def of_algorithm(self, value: Callable[[Algorithm], T]) -> NDArray[Any]:
        """A value of each product's algorithm."""
        return np.array([value(one) for one in self.algorithms])[self.algorithm]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recent(Columns):
    """Reads of what a kernel before has touched; `kernel` is the row of `KernelBatch` that they belong to."""

    kernel: NDArray[np.int64]
    bytes: Floats
    distance: Floats  # bytes of traffic since then
    cyclic: NDArray[np.bool_]  # touched by the same call before, in the same order: what is written is there too

    @classmethod
    def of(cls, kernel: ArrayLike, bytes: ArrayLike, distance: ArrayLike = 0.0, cyclic: ArrayLike = False) -> Self:
        """Columns from numbers and arrays of one length."""
        index = np.asarray(kernel, dtype=np.int64)
        sizes, distances = (np.broadcast_to(np.asarray(v, dtype=float), index.shape) for v in (bytes, distance))
        around = np.broadcast_to(np.asarray(cyclic, dtype=bool), index.shape)
        return cls(kernel=index, bytes=sizes, distance=distances, cyclic=around)


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelBatch:
    """Kernels as columns, all of one length. Sizes are counts, traffic is bytes."""

    math: tuple[Math, ...]  # the arithmetics that occur
    arithmetic: NDArray[np.int64]  # which of them each kernel uses
    tensor_core: NDArray[np.bool_]  # whether its products can use the tensor core
    products: Products
    recent: Recent
    vector_flop: Floats
    special_flop: Floats
    read_bytes: Floats
    write_bytes: Floats
    rows: Floats  # of a reduction or normalization along rows that one block each works on; else 0
    columns: Floats  # elements of such a row
    passes: Floats  # how often such a row is read
    row_bytes: Floats  # what a block comes back to in the later passes
    threads: Floats  # of such a block; 0 where it has so many warps of whatever size
    warps: Floats
    reread_bytes: Floats  # of tensors that are read once more after the kernel has been through them
    repeated_bytes: Floats  # of tensors that a pointwise loop reads over and over, beyond the first time
    repeated_span: Floats  # bytes that pass between two times
    column: Floats  # bytes that a thread has been through before it reads them once more; 0 for the whole tensor
    blocks: Floats  # that sum a part of a tensor each
    loads: Floats  # of such a block's thread, one after the other
    block_bytes: Floats  # that pass while those blocks load
    links: Floats  # of a chain, of which all other columns describe one; 1 for a kernel that is none
    starts: Floats  # of kernels, all links together
    barriers: Floats  # at which all SMs wait for each other, all links together
    library: Floats  # special functions of the compiler's library; a power is several
    accesses: Floats  # loads and stores of single elements where a thread does not take several at once
    indexed: Floats  # loads and stores of elements whose place each is worked out
    waits: Floats  # between calls of one operator, of which each follows the one before
    alone: Floats  # bytes that pass before and after the products, in kernels of their own
    streamed: Floats  # of a stream's bandwidth, what the order of access reaches

    def __len__(self) -> int:
        return len(self.vector_flop)

    @property
    def multiplies(self) -> NDArray[np.bool_]:
        """Whether a kernel has products."""
        return np.bincount(self.products.kernel, minlength=len(self)) > 0

    def per_kernel(self, values: Floats) -> Floats:
        """The sum of these numbers of products, for each kernel."""
        return np.bincount(self.products.kernel, weights=values, minlength=len(self)).astype(float)

    def on_units(self) -> tuple[NDArray[np.int64], dict[int, tuple[Math, bool]]]:
        """A number of each product, and by it the arithmetic and whether it can use the tensor core."""
        rows = self.products.kernel
        keys = 2 * self.arithmetic[rows] + self.tensor_core[rows]
        return keys, {key: (self.math[key // 2], bool(key % 2)) for key in dict.fromkeys(keys.tolist())}

    @classmethod
    def of(
        cls,
        count: int,
        *,
        math: Sequence[Math] | Math = Math.FP32,
        tensor_core: ArrayLike = True,
        products: Products | None = None,
        recent: Recent | None = None,
        each: NDArray[np.int64] | None = None,
        **columns: ArrayLike,
    ) -> Self:
        """Columns from numbers and arrays; what is not given is 0, and rows are read once, by one thread, in a kernel
        that starts once.

        math: one for all kernels, or a sequence, each for as many kernels in a row; `each`: for how many.
        """
        distinct, arithmetic = _numbered((math,) if isinstance(math, Math) else math, count, each)
        names = [f.name for f in fields(cls)][5:]
        values: dict[str, Any] = {
            name: np.broadcast_to(np.asarray(columns.pop(name, float(name in _ONCE)), dtype=float), (count,))
            for name in names
        }
        if columns:
            raise TypeError(f"KernelBatch has no column {', '.join(columns)}")
        return cls(
            math=distinct or (Math.FP32,),
            arithmetic=arithmetic,
            tensor_core=np.broadcast_to(np.asarray(tensor_core, dtype=bool), (count,)),
            products=Products.none() if products is None else products,
            recent=Recent.of([], []) if recent is None else recent,
            **values,
        )


# Kernels, one record each → the columns that the time model works on.


#: Columns that say something of a whole kernel, beside its traffic and its arithmetic outside products.
OF_KERNEL: Mapping[str, Callable[[Kernel], Number]] = {
    **{
        name: attrgetter(place)
        for name, place in {
            "rows": "rows.count", "passes": "rows.passes", "row_bytes": "rows.held_bytes", "threads": "rows.threads",
            "warps": "rows.warps",
            "reread_bytes": "reread_bytes", "repeated_bytes": "repeats.bytes", "repeated_span": "repeats.span",
            "column": "column", "blocks": "blocks.count", "loads": "blocks.loads",
            "block_bytes": "blocks.bytes", "accesses": "accesses", "indexed": "indexed", "alone": "alone",
            "streamed": "streamed", "library": "library",
        }.items()
    },
    "columns": lambda kernel: kernel.rows.length * kernel.rows.worked,
    "links": lambda kernel: kernel.chain.links if kernel.chain else 1,
    "starts": lambda kernel: kernel.chain.starts if kernel.chain else 1,
    "barriers": lambda kernel: kernel.chain.barriers if kernel.chain else kernel.ramps - 1,
    # between the calls of a convolution's loop over images
    "waits": lambda kernel: kernel.chain.links - 1 if kernel.chain and kernel.family is Family.CONVOLUTION else 0,
}  # fmt: skip


def work_of(kernels: Sequence[Kernel], points: int | Sequence[int] = 1) -> KernelBatch:
    """The kernels as columns, in their order, each at so many points (of all, or of each kernel) one after another."""
    counts = np.full(len(kernels), points) if isinstance(points, int) else np.asarray(points, dtype=np.int64)
    at = _Rows(counts, single=points == 1)
    links = [OF_KERNEL["links"](kernel) for kernel in kernels]
    everywhere = range(len(kernels))

    def of_a_link(numbers: Iterable[Number], places: Sequence[int] = everywhere) -> Floats:
        return at.flat(numbers, places) / at.flat((links[i] for i in places), places)

    products = [(i, gemm) for i, kernel in enumerate(kernels) for gemm in kernel.cost.gemms]
    recent = [(i, part) for i, kernel in enumerate(kernels) for part in kernel.recent]
    multiply, find = [i for i, _ in products], [i for i, _ in recent]
    return KernelBatch.of(
        int(counts.sum()),
        math=[kernel.math for kernel in kernels],
        tensor_core=np.repeat([kernel.tensor_core for kernel in kernels], counts),
        each=counts,
        products=Products.of(
            at.rows(multiply),
            batch=of_a_link((gemm.batch for _, gemm in products), multiply),
            **{name: at.flat((getattr(gemm, name) for _, gemm in products), multiply) for name in "mnk"},
            executed=at.flat((_executed(gemm) for _, gemm in products), multiply),
            padded=at.flat((kernels[i].padded for i in multiply), multiply),
            algorithm=[kernels[i].algorithm for i in multiply],
            each=counts[multiply],
        ),
        recent=Recent.of(
            at.rows(find),
            at.flat((r.bytes for _, r in recent), find),
            at.flat((r.distance for _, r in recent), find),
            np.repeat(np.array([r.cyclic for _, r in recent], dtype=bool), counts[find]),
        ),
        **{
            name: of_a_link(getattr(kernel.cost, name) for kernel in kernels)
            for name in ("vector_flop", "special_flop", "read_bytes", "write_bytes")
        },
        **{name: at.flat(map(read, kernels), everywhere) for name, read in OF_KERNEL.items()},
    )


class _Rows:
    """Which rows of the columns are whose, where each kernel has as many as it has points."""

    def __init__(self, counts: NDArray[np.int64], *, single: bool) -> None:
        self._counts, self._ends, self._single = counts, np.cumsum(counts), single

    def rows(self, places: Sequence[int]) -> NDArray[np.int64]:
        """The rows of kernels, by their places."""
        if self._single or not places:
            return np.array(places, dtype=np.int64)
        return np.concatenate([np.arange(self._ends[i] - self._counts[i], self._ends[i]) for i in places])

    def flat(self, numbers: Iterable[Number], places: Sequence[int]) -> Floats:
        """A number for each of these kernels, at all points of it."""
        if self._single:
            return np.array([n.values[0] if type(n) is Column else n for n in numbers], dtype=float)
        given, own = list(numbers), self._counts[list(places)]
        plain = np.array([0.0 if isinstance(n, Column) else float(n) for n in given])
        found: Floats = np.repeat(plain, own)
        for number, end, count in zip(given, np.cumsum(own), own, strict=True):
            if isinstance(number, Column):
                found[end - count : end] = number.values
        return found


def _executed(gemm: Gemm) -> Number:
    if gemm.needed is None:
        return 1.0
    dense = gemm.dense_multiply_adds
    return gemm.needed / dense if dense else 1.0
