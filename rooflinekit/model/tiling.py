"""The tile and the split of k with which a matrix product takes least; what a tile takes is in tile_rates.py.

Few of all tiles and splits come into question. So every tile is looked at without a split first. With s ≥ 2 blocks for
the k of a tile it takes no less than

    start + max(tiles/SMs · block(k, 2·prologue), FLOP at the power limit, traffic with two partial sums)

which tiles of many waves exceed by far; where that is above the least without a split, no split is looked at.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rooflinekit.model.kernel_batch import Floats, Products
from rooflinekit.model.machine import Machine
from rooflinekit.model.memory_system import combined
from rooflinekit.model.power import held_s
from rooflinekit.model.tile_rates import (
    SIDES,
    Rates,
    block_s,
    bounds_on_cuda_cores,
    has_tiles,
    is_gradient,
    never_split,
    packed_bytes,
    prologues,
    restricted,
    steps,
    sustained_share,
)

SPLITS = (1, 2, 3, 4, 6, 8, 12, 16)
_SPLITS = np.array(SPLITS, dtype=float)

#: Why products miss the peak, in the order in which `Fill.without_s` takes the causes away.
CAUSES = ("power", "waves", "tiles")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fill:
    """What a product takes beside its traffic."""

    compute_s: Floats
    without_s: Floats  # [causes, products]: the same without the first of CAUSES, the first two, all of them
    extra_bytes: Floats  # partial sums of split-K
    extra_start_s: Floats  # the kernel that adds them up

    @classmethod
    def empty(cls, count: int) -> Fill:
        """Zeros, to be filled in."""
        zeros = np.zeros((3 + len(CAUSES), count))
        return cls(compute_s=zeros[0], extra_bytes=zeros[1], extra_start_s=zeros[2], without_s=zeros[3:])

    def put(self, chosen: np.ndarray, part: Fill) -> None:
        """Writes the results of some of the products."""
        for name in ("compute_s", "without_s", "extra_bytes", "extra_start_s"):
            getattr(self, name)[..., chosen] = getattr(part, name)


_CHUNK = 1024  # products looked at together: arrays of 512 by 22 tiles stay in a core's cache
_CLOSE = 1 + 1e-12  # beyond this factor a bound is above another number, whatever their rounding
_ROUNDING = 1e-9  # the same of a bound that is worked out in another way

_Ints = NDArray[np.int64]


def tiled(products: Products, rates: Rates, traffic_s: Floats, tensor_core: bool, machine: Machine) -> Fill:
    """The time of each product on the tensor core or on the CUDA cores, beside `traffic_s` of memory traffic."""
    found = Fill.empty(products.m.size)
    for start in range(0, products.m.size, _CHUNK):
        some: Any = slice(start, start + _CHUNK)
        found.put(some, _Tiled(products.where(some), rates.where(some), traffic_s[some], tensor_core, machine).fill())
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options:
    """Products with tiles and splits that come into question: columns."""

    product: _Ints
    tile: _Ints
    split: _Ints
    total_s: Floats
    compute_s: Floats
    tiled_s: Floats  # the same where the board's power is no limit
    extra_bytes: Floats

    def where(self, chosen: _Ints) -> _Options:
        """Some of them."""
        return _Options(**{f.name: getattr(self, f.name)[chosen] for f in fields(self)})

    def and_also(self, others: _Options) -> _Options:
        """Both."""
        return _Options(
            **{f.name: np.concatenate((getattr(self, f.name), getattr(others, f.name))) for f in fields(self)}
        )

    def least(self, count: int) -> _Options:
        """The one of each product that takes least; of equals that without the limit; of equals the first tile."""
        lowest = np.full(count, np.inf)
        np.minimum.at(lowest, self.product, self.total_s)
        alike = np.flatnonzero(self.total_s == lowest[self.product])
        if alike.size > count:
            keys = self.split[alike], self.tile[alike], self.tiled_s[alike]
            alike = alike[np.lexsort(keys)[::-1]]  # what is written last stays
        found = np.empty(count, dtype=np.int64)
        found[self.product[::-1]] = np.arange(self.product.size)[::-1]  # where a time is no number, any
        found[self.product[alike]] = alike
        return self.where(found)


class _Tiled:
    """Products by every tile: arrays are [tiles, products]. What is the same for all products stays a single column."""

    def __init__(self, p: Products, rates: Rates, traffic_s: Floats, tensor_core: bool, machine: Machine) -> None:
        self.count, self.traffic_s, self.tensor_core, self.machine = p.m.size, traffic_s, tensor_core, machine
        p = replace(p, k=np.where(p.told(lambda one: one.fills.of(tensor_core)), p.k * p.padded, p.k))
        p, rates = p.with_columns(_shortened), rates.with_columns(_shortened)
        a, b = SIDES[tensor_core]
        step_s, issue_s, pace = steps(p, rates, tensor_core, machine)
        prologue_s = prologues(p, tensor_core, machine) * pace * step_s
        self.p, self.steps = p, (step_s, issue_s, prologue_s, np.where(is_gradient(p), prologue_s, 0.0))
        self.tiles = p.batch * np.ceil(p.m / a) * np.ceil(p.n / b)
        self.limit_s = p.flop / (rates.limit * sustained_share(p, tensor_core, machine))
        self.packed_bytes = packed_bytes(p, machine)
        self.vector_s, self.fetch_s = bounds_on_cuda_cores(p, rates, tensor_core, machine)
        self.bandwidth = machine.bandwidth * machine.product_bandwidth_share

    def fill(self) -> Fill:
        """What each product takes with the option that takes least."""
        unsplit = self._unsplit().least(self.count)
        split = self._split(unsplit.total_s)
        o = unsplit.and_also(split).least(self.count) if split.product.size else unsplit
        blocks, (a, b) = _of(self.tiles, o.product, o.tile) * _SPLITS[o.split], SIDES[self.tensor_core]
        busy = blocks / (np.ceil(blocks / self.machine.sm_count) * self.machine.sm_count)  # share of SMs, all waves
        asked = _share_asked(self.p.m, a[o.tile, 0]) * _share_asked(self.p.n, b[o.tile, 0])
        freed_s = o.tiled_s * np.stack([np.ones_like(busy), busy, busy * asked])
        return Fill(
            compute_s=o.compute_s,
            without_s=np.maximum(np.minimum(freed_s, np.where(o.split == 0, self.vector_s, np.inf)), self.fetch_s),
            extra_bytes=o.extra_bytes,
            extra_start_s=np.where(o.split > 0, self.machine.start_s, 0.0),
        )

    def _unsplit(self) -> _Options:
        """Tiles that take least without a split, as far as their bounds tell.

        Arithmetic and traffic at once take no less than the longer of the two. So the p-norm, which is slow, is worked
        out for the tile whose bound is lowest, and then for those alone whose bound is not above that.
        """
        p, every = self.p, np.arange(self.count)
        tiled_s = np.ceil(self.tiles / self.machine.sm_count)
        tiled_s = tiled_s * block_s(np.ceil(p.k), *self.steps) * p.executed
        compute_s = np.maximum(np.minimum(self._held_s(tiled_s, self.limit_s), self.vector_s), self.fetch_s)
        extra = np.broadcast_to(self.packed_bytes, (self.count,))
        memory_s = self.traffic_s + extra / self.bandwidth
        least_s = np.maximum(compute_s, memory_s)
        if restricted(p, self.tensor_core):
            least_s[~np.broadcast_to(has_tiles(p, self.tensor_core), least_s.shape)] = np.inf
        first = np.argmin(least_s, axis=0)
        lowest_s = combined(_of(compute_s, every, first), memory_s, self.machine)
        close = least_s <= lowest_s * _CLOSE
        close[first, every] = False
        tile, product = np.nonzero(close)
        others_s = combined(_of(compute_s, product, tile), memory_s[product], self.machine)
        tile, product = np.concatenate((first, tile)), np.concatenate((every, product))
        return _Options(
            product=product, tile=tile, split=np.zeros_like(tile), compute_s=_of(compute_s, product, tile),
            total_s=np.concatenate((lowest_s, others_s)), tiled_s=_of(tiled_s, product, tile),
            extra_bytes=extra[product],
        )  # fmt: skip

    def _split(self, lowest_s: Floats) -> _Options:
        """Tiles over several blocks that might take no longer than `lowest_s`."""
        start_s, most_s = self.machine.start_s, lowest_s * _CLOSE
        tile, product = self._worth_splitting(most_s - start_s)
        count, splits = tile.size, len(_SPLITS) - 1
        tile, product, split = np.tile(tile, splits), np.tile(product, splits), np.repeat(np.arange(splits) + 1, count)
        s, k, executed = _SPLITS[split], _of(self.p.k, product), _of(self.p.executed, product)
        tiled_s = np.ceil(_of(self.tiles, product, tile) * s / self.machine.sm_count)
        tiled_s = tiled_s * block_s(np.ceil(k / s), *(_of(part, product, tile) for part in self.steps)) * executed
        compute_s = np.maximum(self._held_s(tiled_s, _of(self.limit_s, product)), _of(self.fetch_s, product))
        extra = self._extra_bytes(s, product)
        memory_s = self.traffic_s[product] + extra / self.bandwidth
        kept = np.flatnonzero(start_s + np.maximum(compute_s, memory_s) <= most_s[product])
        total_s = start_s + combined(compute_s[kept], memory_s[kept], self.machine)
        return _Options(
            product=product[kept], tile=tile[kept], split=split[kept], compute_s=compute_s[kept], total_s=total_s,
            tiled_s=tiled_s[kept], extra_bytes=extra[kept],
        )  # fmt: skip

    def _held_s(self, free_s: Floats, limit_s: Floats) -> Any:
        """As long as the board's power makes it."""
        window_s, calls, before = self.machine.values["power_window"], self.machine.calls, self.machine.warm_calls
        return held_s(free_s, limit_s, window_s=window_s, calls=calls, before=before)

    def _worth_splitting(self, most_s: Floats) -> tuple[_Ints, _Ints]:
        """Tiles, each with a product, of which the bound above is not more than this without the start."""
        p, every = self.p, np.arange(self.count)
        most_s = np.where(never_split(p, self.tensor_core), -1.0, most_s * (1 + _ROUNDING))
        least_s = self.tiles * (block_s(p.k, *self.steps, prologues=2) * p.executed / self.machine.sm_count)
        least_s = np.maximum(self._held_s(least_s, self.limit_s), self.fetch_s)
        if restricted(p, self.tensor_core):
            least_s = np.where(has_tiles(p, self.tensor_core), least_s, np.inf)
        memory_s = self.traffic_s + self._extra_bytes(_SPLITS[1], every) / self.bandwidth
        tile, product = np.nonzero(np.maximum(least_s, memory_s) <= most_s)
        both_s = combined(_of(least_s, product, tile), memory_s[product], self.machine)
        worth = both_s <= most_s[product]
        return tile[worth], product[worth]

    def _extra_bytes(self, s: Any, product: _Ints) -> Floats:
        """Partial sums of so many splits, and what is packed."""
        batch, m, n = (_of(values, product) for values in (self.p.batch, self.p.m, self.p.n))
        found: Floats = 2 * 4 * s * batch * m * n + _of(self.packed_bytes, product)
        return found


def _shortened(column: NDArray[Any]) -> NDArray[Any]:
    """One number where all are equal."""
    return column[:1] if (column == column[0]).all() else column


def _of(values: NDArray[Any], product: _Ints, tile: _Ints | None = None) -> Any:
    """The numbers of products, or of products by tiles."""
    column: Any = product if values.shape[-1] > 1 else 0
    return values[column] if tile is None else values[tile, column]


def _share_asked(size: Floats, tile: Floats) -> Floats:
    """Of what tiles compute along one size."""
    return size / (np.ceil(size / tile) * tile)
