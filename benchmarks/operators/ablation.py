"""What each term of the time model is worth: the error on shapes that no fit has seen, with the term and without it.

    python -m benchmarks.operators.ablation DATA [--only WORD ...] [--rows 400] [--held]
    python -m benchmarks.operators.ablation DATA --shipped

The second fits nothing: what the chain of recurrent layers is worth on whole problems, and intervals by format. With
`--held` all other constants stay as shipped, and only what the way of timing adds is fitted, with the term and without.

Without a term, its constant is held at the value at which the term vanishes, or the algorithm is none to choose from,
and the other constants of the stages that see the term are fitted anew; so they are for the figure with it. Those of
other stages are the shipped ones.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.operators.accuracy import NINETY, held_back, random_of
from benchmarks.sources.operators import read_ops
from calibration.make.operators import sample
from rooflinekit.calibrate.campaigns.campaign import Campaign
from rooflinekit.calibrate.fitting import constants
from rooflinekit.calibrate.fitting import hierarchical_fit as fitting
from rooflinekit.calibrate.fitting.constants import STAGES, Stage
from rooflinekit.calibrate.fitting.files import load_constants
from rooflinekit.calibrate.fitting.observations import Observations, observations_of, without_faults
from rooflinekit.calibrate.fitting.refit import machines_of
from rooflinekit.kernels.algorithms import IN_PASSES, MIOPEN, WINOGRAD, Algorithm, ByUnit, Tiles
from rooflinekit.kernels.kernel import Kernel
from rooflinekit.kernels.libraries import rated_as
from rooflinekit.timing.families import plain
from rooflinekit.timing.machine import Machine

_CONVOLUTIONS = ("conv_fwd", "conv_bwd_data", "conv_bwd_weight")

#: Term: its constants with the values at which it vanishes, and the ops that it is about.
TERMS: dict[str, tuple[dict[str, float], tuple[str, ...]]] = {
    "tile loss, tensor core": ({"matrix_tile_loss": 1e-6}, ("mm",)),
    "prologue, tensor core": ({"matrix_prologue": 1e-6}, ("mm",)),
    "latency of a step in k": ({"latency_cycles": 1e-6}, ("mm",)),
    "ramp of product kernels": ({"product_ramp_cycles": 1e-6}, ("mm",)),
    "smooth overlap (sharp maximum instead)": ({"overlap": 200.0}, ("mm", "linear", "bmm", "llm_norm", "llm_act")),
    "tile loss, CUDA cores": ({"matrix_tile_loss": 1e-6}, ("linear", "bmm")),
    "power of the board": ({"simt_energy": 1e-30, "matrix_energy": 1e-30}, ("linear", "bmm", "mm")),
    "larger instructions take less energy": ({"energy_size_exponent": 1e-6}, ("mm",)),
    "a moment above the power limit": ({"power_window": 1e-9}, ("mm",)),
    "what a call finds of itself in the cache": ({"cache_share": 1e-6}, ("quantize", "mm", "attention_call")),
    "bandwidth of the cache (32 bytes a clock)": ({"l2_bytes_per_clock": 32.0}, ("quantize", "mm", "attention_call")),
    "early memory": ({"early_memory": 1.0}, ("add", "relu", "gelu", "softmax", "layernorm")),
    "cycles of a row's elements": ({"column_cycles": 1e-9}, ("softmax", "layernorm")),
    "start of a row's block": ({"thread_cycles": 1e-9}, ("softmax", "layernorm")),
    "single accesses": ({"access_cycles": 1e-9}, ("llm_norm", "llm_act", "llm_rope", "llm_gelu")),
    "energy of 8 bits (half of 16)": ({"eight_bit_energy": 0.5}, ("mm_quantized",)),
    "rate of a weight's gradient, CUDA cores": (
        {"simt_weight": 1.0},
        ("conv_bwd_weight",),
    ),
    "volumes, wide windows, few channels": ({"untuned_convolution": 1.0}, ("conv_fwd",)),
    "latency of a step in k, MIOpen": ({"miopen_latency_cycles": 1e-6}, ("conv_fwd", "conv_bwd_data")),
    "16 bits on CUDA cores, MIOpen": ({"miopen_half": 1.0, "emulated_half": 1.0}, _CONVOLUTIONS),
    "blocks of attention": ({"attention_block_cycles": 1e-6}, ("attention", "attention_call", "attention_encoder")),
}


def without(gone: Callable[[Algorithm], bool], o: Observations) -> Observations:
    """Measurements with fewer algorithms to choose from, but for the first."""

    def with_fewer(kernel: Kernel) -> Kernel:
        return replace(kernel, alternatives=tuple(one for one in kernel.alternatives if not gone(one.algorithm)))

    return o.with_kernels(with_fewer)


def named(*names: str) -> Callable[[Algorithm], bool]:
    """Whether an algorithm has one of these names."""
    return lambda algorithm: algorithm.name in names


def changed(change: Callable[[Algorithm], Algorithm], o: Observations) -> Observations:
    """Measurements by algorithms that are changed."""

    def with_other(kernel: Kernel) -> Kernel:
        others = tuple(map(with_other, kernel.alternatives))
        return replace(kernel, algorithm=change(kernel.algorithm), alternatives=others)

    return o.with_kernels(with_other)


def any_clock(algorithm: Algorithm) -> Algorithm:
    """Not at the clock that a board at its limit has for products."""
    return replace(algorithm, holds_clock=False)


def every_tile(tiles: Tiles, algorithm: Algorithm) -> Algorithm:
    """With every tile, where it has `tiles` alone."""
    of = algorithm.tiles
    either = ("every" if kind == tiles else kind for kind in (of.cuda_cores, of.tensor_cores))
    return replace(algorithm, tiles=ByUnit(*either))


def as_if_awake(o: Observations) -> Observations:
    """Measurements as if a board were awake whenever it is timed."""
    return replace(o, timing="profiler") if o.timing == "alone" else o


#: Term: what becomes of measurements without it, and the ops that it is about.
CHANGES: dict[str, tuple[Callable[[Observations], Observations], tuple[str, ...]]] = {
    "Winograd": (partial(without, named(WINOGRAD, IN_PASSES)), _CONVOLUTIONS),
    "products by image, unfolded windows (MIOpen)": (
        partial(without, lambda algorithm: algorithm.library == MIOPEN and bool(algorithm.packs)),
        _CONVOLUTIONS,
    ),
    "a board that wakes up": (as_if_awake, _CONVOLUTIONS),
    "clock of implicit products on a held board": (partial(changed, any_clock), _CONVOLUTIONS),
    "tiles of gradients on tensor cores": (
        partial(changed, partial(every_tile, "by name")),
        ("conv_bwd_data", "conv_bwd_weight"),
    ),
}


def errors(observations: list[Observations], machines: Mapping[str, Machine], solution: fitting.Solution) -> np.ndarray:
    """|predicted / measured - 1|, each op of each GPU with the same weight."""
    found = []
    for o in observations:
        predicted = o.predict(machines[o.gpu].with_values(solution.values(o.gpu)), solution.harness(o.host))
        error = np.abs(predicted / o.seconds - 1)
        found.append((np.median(error), error.mean()))
    return 100 * np.mean(found, axis=0)


def shipped(gpus: Sequence[str]) -> fitting.Solution:
    """The shipped constants as a solution, from which stages go on."""
    shared = {name: c.value for name, c in load_constants().constants.items()}
    known = {("", name): fitting.Estimate(log=float(np.log(value)), stderr=0.1) for name, value in shared.items()}
    for gpu in gpus:
        for name, constant in load_constants(gpu).constants.items():
            if (own := float(np.log(constant.value / shared[name]))) != 0:
                known[gpu, name] = fitting.Estimate(log=own, stderr=constant.stderr)
    return fitting.Solution(estimates=known)


@contextmanager
def without_constants(neutral: Mapping[str, float]) -> Iterator[None]:
    """Constants held at the values at which their terms vanish."""
    described = dict(constants.CONSTANTS)
    for name, value in neutral.items():
        constants.CONSTANTS[name] = replace(described[name], start=value, low=value / 2, high=value * 2, between=0.0)
    try:
        yield
    finally:
        constants.CONSTANTS.update(described)


class Ablation:
    """Fits and judges with and without terms."""

    def __init__(self, campaigns: Sequence[Campaign], rows: int, held: bool = False) -> None:
        self.held = held
        self.machines = machines_of(sorted({c.gpu for c in campaigns}))
        self.training = self._usable([sample(campaign) for campaign in campaigns], rows)
        self.judged = self._usable(held_back(campaigns), rows)

        self._standing: dict[tuple[tuple[str, ...], frozenset[str]], Any] = {}

    def standing(self, stages: Sequence[Stage], ops: Sequence[str]) -> Any:
        """The errors on the ops with every term, worked out once."""
        key = tuple(stage.name for stage in stages), frozenset(ops)
        if key not in self._standing:
            self._standing[key] = self.fitted(stages, _same, set(ops))
        return self._standing[key]

    def _usable(self, campaigns: list[Campaign], rows: int) -> list[Observations]:
        few = [replace(c, rows=_spread(c.rows, rows)) for c in campaigns]
        return [kept for o in observations_of(few) if len(kept := without_faults(o, self.machines[o.gpu]))]

    def fitted(
        self,
        stages: Sequence[Stage],
        change: Callable[[Observations], Observations],
        ops: set[str],
        neutral: Sequence[str] = (),
    ) -> Any:
        """The errors on the ops after a fit of these stages; `neutral` constants stand where CONSTANTS says."""
        judging = list(stages)
        if self.held:
            stages = [replace(stage, constants=(), own=()) for stage in stages]
        names = {name for stage in stages for name in stage.constants} | set(neutral)
        known = shipped(list(self.machines))
        known.estimates = {key: e for key, e in known.estimates.items() if key[1] not in names}
        solution = fitting.fit([change(o) for o in self.training], self.machines, stages, known, by_count=True)
        about_it = [o for o in map(change, self.judged) if o.op in ops and _seen(o, judging, self.machines)]
        return errors(about_it, self.machines, solution)


def _spread(table: pd.DataFrame, most: int) -> pd.DataFrame:
    """At most so many rows of an op and format, spread evenly over all, as sources begin with small shapes."""
    groups = table.groupby(["op", "dtype"], observed=True)
    return table[groups.cumcount() % np.ceil(groups["seconds"].transform("size") / most) == 0]


def _seen(o: Observations, stages: Sequence[Stage], machines: Mapping[str, Machine]) -> bool:
    library = rated_as(machines[o.gpu].device)
    formats = set(o.rows["dtype"])
    return any(o.op in s.ops and formats <= s.dtypes and s.library in ("", library) for s in stages)


def stages_of(names: Sequence[str], ops: Sequence[str], dtypes: str = "") -> list[Stage]:
    """The stages that tell these constants; where none is named, all those of the ops."""
    told = [s for s in STAGES if set(names) & set(s.constants)] if names else [s for s in STAGES if s.ops & set(ops)]
    return [s for s in told if not dtypes or dtypes in s.name]


def _same(o: Observations) -> Observations:
    return o


def _stages_for(term: str, ops: Sequence[str]) -> list[Stage]:
    """Of a change of algorithms or rules: by the library, and the unit, that its name says."""
    unit = "tensor core" if "tensor cores" in term else "CUDA cores"
    word = "MIOpen" if "MIOpen" in term or "wakes" in term else unit
    found = stages_of((), ops, word)
    return found + stages_of((), ops, "MIOpen") if term == "Winograd" else found


def recurrent_row(data: Path) -> tuple[str, ...]:
    """KernelBench's recurrent problems, in eager mode, with the chain and with all steps at once."""
    from benchmarks.networks.kernelbench import predicted_row  # imports torch
    from benchmarks.networks.recurrence import judged
    from rooflinekit.step.chains import without_recurrence

    rows, graphs = judged(data / "kernelbench", "eager")
    at_once = [
        predicted_row(without_recurrence(graph), gpu, "eager")["predicted_s"]
        for graph, gpu in zip(graphs, rows["gpu"], strict=True)
    ]
    with_it, without = (np.abs(np.asarray(p) / rows["measured_s"] - 1) for p in (rows["predicted_s"], at_once))
    found = (f"{100 * np.median(errors):.1f} / {100 * errors.mean():.1f}" for errors in (with_it, without))
    return "chain of a recurrent layer", f"{len(rows)} problems of KernelBench", *found


def spreads_by_format(run: Ablation) -> None:
    """How many measurements lie in 90 % intervals of their own format, and in those of 16 bits."""
    held: dict[str, list[tuple[float, float]]] = {}
    for o in run.judged:
        fit = load_constants(o.gpu)
        alike = plain(o.residuals) == o.residuals or o.residuals not in fit.spreads
        if o.timing not in ("profiler", "rested") or alike:
            continue
        values = {name: c.value for name, c in fit.constants.items()}
        predicted = o.predict(run.machines[o.gpu].with_values(values), {})
        off = np.abs(np.log(o.seconds / predicted))
        spreads = [fit.spreads[name] for name in (o.residuals, plain(o.residuals))]
        inside = [float(np.mean(off <= NINETY * np.hypot(random_of(s, predicted), s.systematic))) for s in spreads]
        held.setdefault(o.residuals, []).append((inside[0], inside[1]))
    print("\n| family | held by intervals of its format, % | of 16 bits, % |\n| --- | --- | --- |")
    for family, parts in sorted(held.items()):
        own, other = 100 * np.mean(parts, axis=0)
        print(f"| {family} | {own:.0f} | {other:.0f} |")


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--only", nargs="*", default=[""], metavar="WORD", help="terms that have one of these in them")
    parser.add_argument("--rows", type=int, default=400, help="of an op and format on a GPU, at most")
    parser.add_argument("--held", action="store_true", help="all other constants stay as shipped")
    parser.add_argument("--shipped", action="store_true", help="what needs no fit")
    options = parser.parse_args(arguments)
    if options.shipped:
        print(f"| {' | '.join(recurrent_row(options.data))} |")
        spreads_by_format(Ablation(read_ops(options.data), options.rows))
        return
    run = Ablation(read_ops(options.data), options.rows, options.held)
    print("| term | ops | median / MAPE with it, % | without it, % |\n| --- | --- | --- | --- |")
    for term in (*TERMS, *CHANGES):
        if not any(word in term for word in options.only):
            continue
        before, after, ops = worth(run, term)
        print(f"| {term} | {', '.join(ops)} | {before[0]:.1f} / {before[1]:.1f} | {after[0]:.1f} / {after[1]:.1f} |",
              flush=True)  # fmt: skip


def worth(run: Ablation, term: str) -> tuple[Any, Any, tuple[str, ...]]:
    """The errors with a term and without it, and the ops that they are of."""
    if term in TERMS:
        neutral, ops = TERMS[term]
        stages = stages_of((), ops, "CUDA cores") if term.endswith(", CUDA cores") else stages_of(list(neutral), ops)
        before = run.standing(stages, ops)
        with without_constants(neutral):
            fewer = [replace(s, constants=tuple(n for n in s.constants if n not in neutral)) for s in stages]
            return before, run.fitted(fewer, _same, set(ops), list(neutral)), ops
    change, ops = CHANGES[term]
    stages = _stages_for(term, ops)
    before = run.standing(stages, ops)
    return before, run.fitted(stages, change, set(ops)), ops


if __name__ == "__main__":
    main()
