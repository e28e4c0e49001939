"""What terms are called wherever a person reads them: tables, sentences, figures, pages."""

from __future__ import annotations

from collections.abc import Mapping

from rooflinekit.timing.timings import Bound

#: What each term of a step is, on one device and on several, and each cause of peak not reached.
MEANING: Mapping[str, str] = {
    "ideal": "FLOP at peak",
    "underuse": "peak not reached",
    "memory": "memory traffic",
    "launch": "kernel starts",
    "overhead": "GPU waits for CPU",
    "input": "GPU waits for inputs",
    "contention": "kernels slowed by collectives",
    "communication": "GPU waits for links",
    "straggling": "GPU waits for slower devices",
    "bubble": "idle pipeline stages",
    "offload": "GPU waits for what is kept on the CPU",
    "correction": "correction as measured",
    "power": "clock held down by the board's power",
    "waves": "SMs idle in the last wave",
    "tiles": "tiles beyond the edge",
    "rate": "peak not reached by busy SMs",
}

#: Which terms a regime puts together; `power` is the first part of `underuse`. See "Regimes" in docs/model.md.
REGIME_TERMS: Mapping[Bound, tuple[str, ...]] = {
    "compute": ("ideal", "power"),
    "memory": ("memory",),
    "latency": ("underuse", "launch"),
    "overhead": ("overhead", "input"),
}

#: What lowers the time of a step of each regime.
REMEDIES: Mapping[str, tuple[str, ...]] = {
    "compute": ("autocast", "a GPU with more FLOP/s"),
    "memory": ("torch.compile", "autocast", "channels last", "a GPU with more bandwidth"),
    "latency": ("a larger batch", "torch.compile", "a CUDA graph"),
    "overhead": ("torch.compile", "a CUDA graph", "a larger batch", "a faster host"),
}


def parted(terms: Mapping[str, float], underuse: Mapping[str, float]) -> dict[str, float]:
    """Terms with `power` beside what else keeps the peak from being reached, as regimes put them together.

    >>> parted({"ideal": 2.0, "underuse": 3.0, "memory": 1.0}, {"power": 1.0, "rate": 2.0})
    {'ideal': 2.0, 'power': 1.0, 'underuse': 2.0, 'memory': 1.0}
    """
    found: dict[str, float] = {}
    for name, seconds in terms.items():
        if name == "underuse":
            found |= {"power": underuse["power"], name: seconds - underuse["power"]}
        else:
            found[name] = seconds
    return found
