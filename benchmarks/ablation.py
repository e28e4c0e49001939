"""What each term of the time model is worth: the error on shapes that no fit has seen, with the term and without it.

    python benchmarks/ablation.py DATA

Without a term, its constant is held at the value at which the term vanishes, and all others are fitted anew.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from accuracy import held_back
from make_campaigns import sample
from measured import read_ops

from rooflinekit.calibrate import constants, fitting
from rooflinekit.calibrate.observations import Observations, observations_of, without_faults
from rooflinekit.calibrate.refit import machines_of
from rooflinekit.calibrate.stages import STAGES
from rooflinekit.model.machine import Machine

ROWS = 400  # of an op on a GPU

#: Term: its constants with the values at which it vanishes, and the ops that it is about.
TERMS: dict[str, tuple[dict[str, float], tuple[str, ...]]] = {
    "tile loss, matrix engine": ({"matrix_tile_loss": 1e-6}, ("mm",)),
    "prologue, matrix engine": ({"matrix_prologue": 1e-6}, ("mm",)),
    "latency of a step in k": ({"matrix_latency_cycles": 1e-6}, ("mm",)),
    "ramp of product kernels": ({"product_ramp_cycles": 1e-6}, ("mm",)),
    "smooth overlap (sharp maximum instead)": ({"overlap": 200.0}, ("mm", "linear", "bmm", "llm_norm", "llm_act")),
    "tile loss, vector lanes": ({"lanes_tile_loss": 1e-6}, ("linear", "bmm")),
    "power of the board": ({"lanes_energy": 1e-30, "matrix_energy": 1e-30}, ("linear", "bmm", "mm")),
    "larger instructions take less energy": ({"energy_size_exponent": 1e-6}, ("mm",)),
    "a moment above the power limit": ({"power_window": 1e-9}, ("mm",)),
    "what a call finds of itself in the cache": ({"cache_share": 1e-6}, ("quantize", "mm", "attention_call")),
    "bandwidth of the cache (32 bytes a clock)": ({"l2_bytes_per_clock": 32.0}, ("quantize", "mm", "attention_call")),
    "rate of 8 bits (that of 16)": ({"eight_bit_share": 1.0}, ("mm", "mm_quantized")),
    "early memory": ({"early_memory": 1.0}, ("add", "relu", "gelu", "softmax", "layernorm")),
    "cycles of a row's elements": ({"column_cycles": 1e-9}, ("softmax", "layernorm")),
    "start of a row's block": ({"row_cycles": 1e-9}, ("softmax", "layernorm")),
    "single accesses": ({"access_cycles": 1e-9}, ("llm_norm", "llm_act", "llm_rope", "llm_gelu")),
    "energy of 8 bits (half of 16)": ({"eight_bit_energy": 0.5}, ("mm_quantized",)),
    "rates of gradients": (
        {"matrix_backward": 1.0, "matrix_weight": 1.0, "lanes_backward": 1.0, "lanes_weight": 1.0},
        ("conv_bwd_data", "conv_bwd_weight"),
    ),
    "volumes and wide windows": ({"lanes_volume": 1.0, "matrix_volume": 1.0, "lanes_few": 1.0}, ("conv_fwd",)),
    "latency of a step in k, MIOpen": ({"miopen_latency_cycles": 1e-6}, ("conv_fwd", "conv_bwd_data")),
    "bf16 on lanes, MIOpen": ({"emulated_bf16": 1.0}, ("conv_fwd", "conv_bwd_data")),
    "calls of the library of products, MIOpen": ({"library_call": 1e-12}, ("conv_fwd", "conv_bwd_data")),
    "blocks of attention": ({"attention_block_cycles": 1e-6}, ("attention", "attention_call")),
}


def errors(observations: list[Observations], machines: Mapping[str, Machine], solution: fitting.Solution) -> np.ndarray:
    """|predicted / measured - 1|, each op of each GPU with the same weight."""
    found = []
    for o in observations:
        predicted = o.predict(machines[o.gpu].with_values(solution.values(o.gpu)), solution.harness(o.host))
        error = np.abs(predicted / o.seconds - 1)
        found.append((np.median(error), error.mean()))
    return 100 * np.mean(found, axis=0)


def main(data: Path) -> None:
    """Prints the table."""
    campaigns = read_ops(data)
    machines = machines_of(sorted({c.gpu for c in campaigns}))

    def seen(parts: list) -> list[Observations]:
        usable = [without_faults(o, machines[o.gpu]) for o in observations_of(parts)]
        return [o for o in usable if len(o)]

    training = seen([sample(campaign) for campaign in campaigns])
    judged = [o.taken(np.arange(len(o)) < ROWS) for o in seen(held_back(campaigns))]
    whole = fitting.fit(training, machines)
    print("| term | ops | median / MAPE with it, % | without it, % |\n| --- | --- | --- | --- |")
    for term, (neutral, ops) in TERMS.items():
        described = dict(constants.CONSTANTS)
        for name, value in neutral.items():
            about = described[name]
            constants.CONSTANTS[name] = replace(about, start=value, low=value / 2, high=value * 2, between=0.0)
        stages = [replace(s, constants=tuple(n for n in s.constants if n not in neutral)) for s in STAGES]
        without = fitting.fit(training, machines, stages)
        about_it = [o for o in judged if o.op in ops]
        after = errors(about_it, machines, without)
        constants.CONSTANTS.update(described)
        before = errors(about_it, machines, whole)
        print(
            f"| {term} | {', '.join(ops)} | {before[0]:.1f} / {before[1]:.1f} | {after[0]:.1f} / {after[1]:.1f} |",
            flush=True,
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
