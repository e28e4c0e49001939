"""Kernels as columns: what each computes and moves, in arrays, so that a million are timed as quickly as one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Self, TypeAlias, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rooflinekit.ir.tensor import Math
from rooflinekit.model.algorithms import PRODUCT, Algorithm

Floats: TypeAlias = NDArray[np.float64]
T = TypeVar("T")

_ONCE = ("passes", "threads", "links", "starts", "streamed")  # columns that are 1 where nothing is said


@dataclass(frozen=True, slots=True, kw_only=True)
class Products:
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

    @classmethod
    def of(
        cls,
        kernel: ArrayLike,
        *,
        m: ArrayLike,
        n: ArrayLike,
        k: ArrayLike,
        batch: ArrayLike = 1,
        executed: ArrayLike = 1,
        padded: ArrayLike = 1,
        algorithm: Algorithm | Sequence[Algorithm] = PRODUCT,
        each: NDArray[np.int64] | None = None,
    ) -> Self:
        """Columns from numbers and arrays of one length.

        algorithm: one for all, or a sequence, each for as many products in a row; `each`: for how many.
        """
        index = np.asarray(kernel, dtype=np.int64)
        shape = index.shape
        several = (algorithm,) if isinstance(algorithm, Algorithm) else algorithm
        distinct = tuple(dict.fromkeys(several))
        places = {one: i for i, one in enumerate(distinct)}
        codes = np.array([places[one] for one in several], dtype=np.int64)

        def column(values: ArrayLike) -> Floats:
            return np.broadcast_to(np.asarray(values, dtype=float), shape)

        return cls(
            kernel=index,
            batch=column(batch),
            m=column(m),
            n=column(n),
            k=column(k),
            executed=column(executed),
            padded=column(padded),
            algorithms=distinct or (PRODUCT,),
            algorithm=np.repeat(codes, index.size // max(1, len(several)) if each is None else each),
        )

    @classmethod
    def none(cls) -> Self:
        """No products."""
        empty = np.zeros(0)
        return cls.of(empty, m=empty, n=empty, k=empty)

    def told(self, value: Callable[[Algorithm], T]) -> NDArray[Any]:
        """A value of each product's algorithm."""
        return np.array([value(one) for one in self.algorithms])[self.algorithm]

    def with_columns(self, change: Callable[[NDArray[Any]], NDArray[Any]]) -> Products:
        """With each column changed."""
        columns = {f.name: change(getattr(self, f.name)) for f in fields(self) if f.name != "algorithms"}
        return Products(algorithms=self.algorithms, **columns)

    def where(self, chosen: NDArray[Any]) -> Products:
        """The products that are chosen, of the same kernels."""
        return self.with_columns(lambda column: column[chosen])


@dataclass(frozen=True, slots=True, kw_only=True)
class Recent:
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

    def and_also(self, others: Recent) -> Recent:
        """Both."""
        both = {f.name: (getattr(self, f.name), getattr(others, f.name)) for f in fields(self)}
        return Recent(**{name: np.concatenate(pair) for name, pair in both.items()})


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
    threads: Floats  # of such a block
    reread_bytes: Floats  # of tensors that are read once more after the kernel has been through them
    column: Floats  # bytes that a thread has been through before it reads them once more; 0 for the whole tensor
    blocks: Floats  # that sum a part of a tensor each
    loads: Floats  # of such a block's thread, one after the other
    block_bytes: Floats  # that pass while those blocks load
    links: Floats  # of a chain, of which all other columns describe one; 1 for a kernel that is none
    starts: Floats  # of kernels, all links together
    barriers: Floats  # at which all SMs wait for each other, all links together
    powers: Floats  # numbers raised to powers that are no small whole numbers
    accesses: Floats  # loads and stores of single elements where a thread does not take several at once
    waits: Floats  # between calls of one operator, of which each follows the one before
    calls: Floats  # of another library, where the timer sees them
    alone: Floats  # bytes that pass before and after the products, in kernels of their own
    streamed: Floats  # of a stream's bandwidth, what the order of access reaches

    def __len__(self) -> int:
        return len(self.vector_flop)

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
        maths = (math,) if isinstance(math, Math) else tuple(math)
        distinct = tuple(dict.fromkeys(maths)) or (Math.FP32,)
        codes = {value: i for i, value in enumerate(distinct)}
        names = [f.name for f in fields(cls)][5:]
        values: dict[str, Any] = {
            name: np.broadcast_to(np.asarray(columns.pop(name, float(name in _ONCE)), dtype=float), (count,))
            for name in names
        }
        if columns:
            raise TypeError(f"KernelBatch has no column {', '.join(columns)}")
        return cls(
            math=distinct,
            arithmetic=np.repeat(
                np.array([codes[value] for value in maths], dtype=np.int64),
                count // max(1, len(maths)) if each is None else each,
            ),
            tensor_core=np.broadcast_to(np.asarray(tensor_core, dtype=bool), (count,)),
            products=Products.none() if products is None else products,
            recent=Recent.of([], []) if recent is None else recent,
            **values,
        )
