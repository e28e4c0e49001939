"""Measurements ready to be predicted: campaigns → kernels, with what the way of timing adds to the kernel."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rooflinekit.calibrate.campaigns.campaign import Campaign
from rooflinekit.calibrate.campaigns.counted import Group, counted
from rooflinekit.calibrate.campaigns.operators import CONVOLUTIONS
from rooflinekit.hardware.device import Device
from rooflinekit.hardware.specs import device_names, load_device
from rooflinekit.ir import keyed
from rooflinekit.ir.points import values_of
from rooflinekit.kernels.kernel import Kernel
from rooflinekit.timing.families import plain
from rooflinekit.timing.kernel_batch import Floats, KernelBatch, work_of
from rooflinekit.timing.machine import Machine
from rooflinekit.timing.roofline import Times, choices_of, time_work

#: The constant that stands for the gap before a kernel, by the way of timing; a profiler sees none.
_GAPS = {"graph": "kernel_gap_graph", "backend": "kernel_gap_graph", "event": "kernel_gap"}

LIBRARY = "library"  # see `Observations.on_gpu`

#: A table of attention is of prompts or of decoding as a whole: as most of its rows are.
_ATTENDING = ("attention", "decoding")

#: How sharply a board wakes up, as a power of the time: equal solvers on RX 6800 XT and MI60, and on Vega 56 and 64.
_WAKING = 3.0

#: Faster than this share of the datasheet's roofline, a measurement is taken for a fault of the measurement.
_POSSIBLE = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """The kernels of measurements by every algorithm that a device has, as columns."""

    work: KernelBatch
    row: NDArray[np.int64]  # which measurement each is of
    owner: NDArray[np.int64]  # which kernel of all, numbered through
    first: NDArray[np.bool_]  # whether it is the first of that kernel's algorithms
    calls: Floats  # of a library of products, which the timer sees

    @classmethod
    def of(cls, groups: Sequence[Group], machine: Machine) -> Candidates:
        """The candidates of groups of measurements, on a machine."""
        kernels: list[Kernel] = []
        rows, owners, firsts, kernel_count = [], [], [], 0
        for group in groups:
            count = len(group.rows)
            for kernel in group.kernels:
                for i, choice in enumerate(choices_of(kernel, machine)):
                    kernels.append(choice)
                    rows.append(group.rows)
                    owners.append(kernel_count + np.arange(count))
                    firsts.append(np.full(count, i == 0))
                kernel_count += count
        counts = [len(each) for each in rows]
        calls = [np.broadcast_to(values_of(k.library_calls), n) for k, n in zip(kernels, counts, strict=True)]
        none = [np.zeros(0, dtype=np.int64)]
        return cls(
            work=work_of(kernels, counts),
            row=np.concatenate(rows or none),
            owner=np.concatenate(owners or none),
            first=np.concatenate(firsts or none).astype(bool),
            calls=np.concatenate([*none, *calls]).astype(float),
        )

    def fastest(self, seconds: Floats, count: int) -> Floats:
        """For each of `count` measurements, the time of all its kernels, each by its fastest algorithm."""
        best: Floats = np.full(self.owner.max(initial=-1) + 1, np.inf)
        np.minimum.at(best, self.owner, seconds)
        return self.summed(best[self.owner], count)

    def summed(self, values: Floats, count: int) -> Floats:
        """For each of `count` measurements, a sum over its kernels, each by its first algorithm."""
        return np.bincount(self.row, weights=values * self.first, minlength=count).astype(float)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Observations(Campaign):
    """Measurements of one op on one GPU, timed in one way on one host."""

    op: str
    residuals: str  # the family that its residuals are of: as timing.families
    groups: tuple[Group, ...]
    memo: dict[str, tuple[Device, Candidates]] = field(default_factory=dict, repr=False)

    @property
    def host(self) -> str:
        """Machine and harness behind it: the same for all measurements of one source on one GPU."""
        return f"{self.gpu} {self.source.split(' ')[0]}"

    @property
    def seconds(self) -> Floats:
        """What was measured, by row."""
        return self.rows["seconds"].to_numpy(dtype=float)

    def __len__(self) -> int:
        return len(self.rows)

    def candidates(self, machine: Machine) -> Candidates:
        """Their kernels on a machine, remembered until one of another device is asked for."""
        known = self.memo.get("last")
        if known is None or known[0] is not machine.device:
            known = self.memo["last"] = machine.device, Candidates.of(self.groups, machine)
        return known[1]

    def predict(self, machine: Machine, harness: Mapping[str, float]) -> Floats:
        """Seconds as this way of timing would measure them; `harness` as for `timed`."""
        return self.timed(self.on_gpu(machine, harness.get(LIBRARY, 0.0)), harness)

    def on_gpu(self, machine: Machine, library_s: float = 0.0) -> Floats:
        """Seconds on the device, with the gap before the kernel where this way of timing sees it.

        library_s: what a timer around the operator sees of a call of the library of products, besides; as algorithms
        are chosen by such a timer, it decides among them.
        """
        gap = _GAPS.get(self.timing)
        values = {**machine.values, "kernel_gap": machine.values[gap] if gap else 0.0}
        values |= {"untuned_bf16": 1.0} if self.tuned else {}
        burst = machine.burst or self.timing == "rested"
        gapped = replace(machine, values=values, calls=self.calls, warm_calls=self.warm_calls, burst=burst)
        found = self.candidates(machine)
        seconds = time_work(found.work, gapped, explained=False).total_s
        return found.fastest(seconds + library_s * found.calls, len(self))

    def timed(self, seconds: Floats, harness: Mapping[str, float]) -> Floats:
        """What this way of timing makes of seconds on the device.

        harness: `dispatch` and `after`, the CPU's seconds before the launch and from there to the closing event;
        `dispatch:OP`, how much more the op takes than an addition; `backend`, what a library does around a kernel;
        `slow` and `awake`: by how much a board that wakes up is slower, and seconds after which it no longer is.
        """
        if self.timing == "event":
            before = harness["dispatch"] * harness.get(f"dispatch:{self.op}", 1.0)
            return before + np.maximum(seconds, harness["after"])
        if self.timing == "backend":
            return seconds + harness["backend"]
        if self.timing == "alone":
            # a board keeps its slowness, as a logarithm, for a part of the time that it takes to wake up
            share = seconds * harness["slow"] / harness["awake"]
            return seconds * harness["slow"] ** (1 / (1 + share**_WAKING))
        return seconds

    def by_first(self, machine: Machine, what: Callable[[KernelBatch, Times], Floats]) -> Floats:
        """For each measurement, a sum over its kernels, each by the first of its algorithms."""
        found = self.candidates(machine)
        return found.summed(what(found.work, time_work(found.work, machine)), len(self))

    def taken(self, chosen: NDArray[Any]) -> Observations:
        """The observations of the chosen rows."""
        rows = self.rows[chosen].reset_index(drop=True)
        groups = counted(self.op, rows, _device(self.gpu), self.like)
        return replace(self, rows=rows, groups=groups, memo={})

    def with_kernels(self, change: Callable[[Kernel], Kernel]) -> Observations:
        """The same measurements with each kernel changed; a kernel brings its alternatives with it."""
        groups = tuple(replace(g, kernels=tuple(map(change, g.kernels))) for g in self.groups)
        return replace(self, groups=groups, memo={})


def observe(campaign: Campaign, op: str, device: Device | None = None) -> Observations:
    """Measurements of one op in one format, which are all rows of the campaign, with their kernels.

    device: by default the shipped one of the campaign's name.
    """
    rows = campaign.rows.reset_index(drop=True)
    groups = counted(op, rows, device or _device(campaign.gpu), campaign.like)
    own = {f.name: getattr(campaign, f.name) for f in fields(Campaign)} | {"rows": rows}
    return Observations(**own, op=op, residuals=groups[0].residuals if groups else "", groups=groups)


@functools.cache
def _device(gpu: str) -> Device | None:
    """The GPU's specification, or None where there is none of this name."""
    return load_device(gpu) if gpu in device_names() else None


def observations_of(campaigns: Iterable[Campaign]) -> list[Observations]:
    """Every op of every campaign on its own, by format and by the family of its residuals."""
    return [
        one
        for campaign in campaigns
        for (op, _), rows in campaign.rows.groupby(["op", "dtype"], sort=True)
        for one in _by_family(observe(replace(campaign, rows=rows), str(op)))
    ]


def _by_family(found: Observations) -> Iterator[Observations]:
    """Measurements whose residuals are kept under one name."""
    names = keyed.sums((group.residuals, len(group.rows)) for group in found.groups)
    most = max(names, key=names.__getitem__, default="")
    if len(names) < 2 or plain(most) in _ATTENDING:
        yield replace(found, residuals=most)
        return
    for name in sorted(names):
        own = [group for group in found.groups if group.residuals == name]
        places = np.sort(np.concatenate([group.rows for group in own]))
        groups = tuple(replace(group, rows=np.searchsorted(places, group.rows)) for group in own)
        rows = found.rows.iloc[places].reset_index(drop=True)
        yield replace(found, residuals=name, rows=rows, groups=groups, memo={})


def without_faults(found: Observations, machine: Machine) -> Observations:
    """Without measurements that no GPU with this datasheet can have made."""
    if found.op in CONVOLUTIONS:  # algorithms exist that take fewer FLOP than the direct one
        return found
    least = found.by_first(machine, lambda _, times: times.ideal_s)
    return found.taken(found.seconds > _POSSIBLE * least)
