"""A prediction as a document, as lines of text, and as a table for a notebook."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

from rooflinekit.hardware.specs import load_host
from rooflinekit.ir import notebook
from rooflinekit.ir.graph import Graph
from rooflinekit.ir.op import Family
from rooflinekit.ir.sizes import is_formula
from rooflinekit.kernels.fusion import FUSED
from rooflinekit.step.attention import attention_seconds
from rooflinekit.step.bounds import host_note
from rooflinekit.step.chains import chain_sentences, chains_of
from rooflinekit.step.entry import entry_of
from rooflinekit.step.labels import MEANING, REMEDIES, parted
from rooflinekit.step.timeline import Span
from rooflinekit.step.utilization import main_peak
from rooflinekit.timing.timings import Timing
from rooflinekit.units import format_bytes, format_quantity, number

if TYPE_CHECKING:
    import pandas as pd

    from rooflinekit.step.execution import Execution
    from rooflinekit.step.prediction import Prediction


_time = partial(format_quantity, unit="s")
_MODULES = 10  # in a notebook
_BYTES = (
    "peak_bytes", "peak_op", "weight_bytes", "gradient_bytes", "state_bytes", "workspace_bytes", "reserved_bytes",
    "context_bytes",
)  # fmt: skip


def document(p: Prediction) -> dict[str, Any]:
    """Everything but the kernels, ready for JSON."""
    low, high = p.interval()
    return {
        "model": p.graph_name,
        "mode": p.mode,
        "device": p.machine.name,
        "host": p.host.name,
        "execution": asdict(p.execution),
        "autocast": p.graph.autocast,
        "channels_last": p.graph.channels_last,
        "like": None if p.graph.like is None else str(p.graph.like),
        "sizes": dict(p.sizes),
        "total_s": p.total_s,
        "low_s": low,
        "high_s": high,
        "gpu_s": p.gpu_s,
        "cpu_s": p.cpu_s,
        "regime": p.regime,
        "shares": dict(p.shares),
        "energy": None if p.energy is None else p.energy.to_dict((low, high)),
        "power_limit_w": p.machine.power_limit,
        "clock_limit_hz": p.machine.clock_limit,
        "terms": p.terms(),
        "underuse": p.underuse(),
        "mfu": p.mfu,
        "hfu": p.hfu,
        "flop": p.flop,
        "bytes": p.bytes,
        "kernels": p.launched,
        "chains": [asdict(chain) for chain in chains_of(p)],
        "constants": p.machine.constants.name,
        "burst": p.machine.burst,
        "memory": {
            **{name: getattr(p.memory, name) for name in _BYTES},
            "capacity_bytes": p.memory.capacity,
            "fits": p.memory.fits,
        },
        "coverage": p.coverage.to_dict(),
        "accuracy": None if p.accuracy is None else p.accuracy.to_dict(),
        "notes": list(p.notes),
    }


def shown_terms(p: Prediction) -> dict[str, float]:
    """The terms, as regimes sum them (REGIME_TERMS), without power and the wait for inputs where these are 0."""
    terms = parted(p.terms(), p.underuse())
    return {name: seconds for name, seconds in terms.items() if seconds or name not in ("input", "power")}


def title(p: Prediction) -> str:
    """The workload and its execution in a line."""
    return heading(p.graph, p.sizes, [p.execution])


def heading(graph: Graph, sizes: Mapping[str, int], executions: Sequence[Execution]) -> str:
    """The model, its step, sizes, precision and execution, where that is one."""
    trains = f" ({graph.trains_with})" if graph.trains_with else ""
    named = [f"{name} {value}" for name, value in sizes.items()]
    layout = ["channels last"] if graph.channels_last else []
    like = [f"as PyTorch {graph.like}"] if graph.like is not None else []
    execution = [str(one) for one in executions] if len(executions) == 1 else []
    return ", ".join([graph.name, f"{graph.mode}{trains}", *named, precision(graph), *layout, *execution, *like])


def precision(graph: Graph) -> str:
    """How most numbers of the weights, or else of the inputs, are stored, and what computes in another format."""
    tensors = graph.learned or graph.inputs
    floating = [tensor for tensor in tensors if tensor.dtype.is_floating or tensor.dtype.is_complex]
    most = max(floating or graph.inputs, key=lambda one: 0 if is_formula(one.numel) else one.numel, default=None)
    stored = "no tensors" if most is None else str(most.dtype)
    region = f" with autocast {graph.autocast}" if graph.autocast else ""
    return stored + region + {None: "", True: " with tf32", False: " without tf32"}[graph.tf32]


def lines(p: Prediction) -> list[str]:
    """The step in four lines and its notes."""
    interval = p.interval()
    sizes = ", ".join(f"{name}={value}" for name, value in p.sizes.items())
    terms = ", ".join(f"{MEANING[name]} {_time(s)}" for name, s in shown_terms(p).items())
    return [
        f"{p.graph_name} {p.mode}{f' ({sizes})' if sizes else ''}, {precision(p.graph)}, {p.execution.backend} "
        f"on {p.machine.name}: {_time(p.total_s)} ({_between(interval)}), {p.regime}-bound",
        f"GPU busy {_time(p.gpu_s)}, CPU issuing {_time(p.cpu_s)}, "
        f"{p.launched} kernel{'s' * (p.launched != 1)}, peak memory {format_bytes(p.memory.peak_bytes)}",
        *([] if p.energy is None else [p.energy.line(interval)]),
        f"terms: {terms}",
        f"counts: {p.coverage}",
        *([] if p.accuracy is None else [f"judged: {p.accuracy}"]),
        *(f"chain: {sentence}" for sentence in chain_sentences(p)),
        *(f"note: {note}" for note in p.notes),
    ]


def answer_rows(predictions: Sequence[Prediction]) -> list[tuple[str, list[str]]]:
    """The answer, a line a fact; of a device whose memory is too small nothing but how much it needs."""
    facts = [_answer(p) for p in predictions]
    labels = dict.fromkeys(label for one in sorted(facts, key=len, reverse=True) for label in one)
    return [(label, [one.get(label, "–") for one in facts]) for label in labels]


#: Hosts that stand for what people have: a server of their own, a rented machine.
_HOSTS = ("generic-server", "generic-cloud")


def _on_hosts(p: Prediction) -> dict[str, str]:
    """The time on such hosts, where the interval is wide for want of one."""
    if not host_note(p.host, p.interval(), p.gpu_interval()):
        return {}
    there = [p.again(host=load_host(name)) for name in _HOSTS]
    return {f"  --host {', '.join(_HOSTS)}": ", ".join(_time(q.total_s) for q in there)}


def _answer(p: Prediction) -> dict[str, str]:
    if not p.memory.fits:
        return {"peak memory": _memory(p)}
    unit, count = p.counted
    terms = shown_terms(p)
    most = max(terms, key=terms.__getitem__)
    largest, regime = terms[most] / p.total_s if p.total_s else 0.0, p.shares[p.regime]
    part = "" if math.isclose(largest, regime) else f"; {MEANING[most]} {largest:.0%}"
    found = {
        "time of a step": _time(p.total_s),
        "  90 % interval": _between(p.interval()),
        "  GPU busy": f"{_time(p.gpu_s)} ({_between(p.gpu_interval())})",
        "  CPU issuing": f"{_time(p.cpu_s)} ({_between(p.cpu_interval())})",
        **_on_hosts(p),
        "regime": f"{p.regime} ({regime:.0%}{part})",
        f"{unit}/s": number(count / p.total_s if p.total_s else None),
        "peak memory": _memory(p),
    }
    if p.energy is not None:
        found["energy of a step"] = f"{_of_energy(p, 'joules', 'J')} ({_of_energy(p, 'mean_w', 'W')})"
    return found | ({_MFU: _mfu(p)} if p.mode == "training" else {})


_MFU = "MFU = matrix FLOP / (time · peak)"


def _mfu(p: Prediction) -> str:
    form, peak = main_peak(p.timings, p.machine.device)
    return f"{p.mfu:.1%} of {format_quantity(peak, 'flop/s')} in {form}" if form else "–"


def _between(bounds: tuple[float, float]) -> str:
    return " to ".join(_time(bound) for bound in bounds)


def table_rows(predictions: Sequence[Prediction]) -> list[tuple[str, list[str]]]:
    """A line a fact, with its value for each prediction: the time, its terms, and what is counted."""
    rows = [
        ("time of a step", [_time(p.total_s) for p in predictions]),
        ("  90 % interval", [_between(p.interval()) for p in predictions]),
        ("regime", [f"{p.regime} ({p.shares[p.regime]:.0%})" for p in predictions]),
    ]
    terms = [parted(p.terms(), p.underuse()) for p in predictions]
    for term in dict.fromkeys(term for each in terms for term in each):
        column = [each.get(term, 0.0) for each in terms]
        if any(column) or term not in ("input", "power"):
            shares = [s / p.total_s if p.total_s else 0.0 for s, p in zip(column, predictions, strict=True)]
            cells = [f"{_time(s)} {share:4.0%}" for s, share in zip(column, shares, strict=True)]
            rows.append((f"  {MEANING[term]}", cells))
    rows += [
        ("GPU busy", [_time(p.gpu_s) for p in predictions]),
        ("CPU issuing", [_time(p.cpu_s) for p in predictions]),
        ("kernels", [str(p.launched) for p in predictions]),
        ("FLOP", [format_quantity(p.flop, "flop") for p in predictions]),
        ("traffic", [format_quantity(p.bytes, "byte") for p in predictions]),
        ("peak memory", [_memory(p) for p in predictions]),
    ]
    attention = [attention_seconds(p.timings) for p in predictions]
    if any(attention):
        cells = [", ".join(f"{name} {_time(s)}" for name, s in one.items()) or "–" for one in attention]
        rows.append(("attention by", cells))
    if any(p.energy for p in predictions):
        rows += [(label, [_of_energy(p, name, unit) for p in predictions]) for label, name, unit in _ENERGY_ROWS]
    if any(p.mode == "training" for p in predictions):
        rows.append((_MFU, [_mfu(p) for p in predictions]))
    return rows


_ENERGY_ROWS = (("energy of a step", "joules", "J"), ("  mean power", "mean_w", "W"), ("  peak power", "peak_w", "W"))


def _of_energy(p: Prediction, name: str, unit: str) -> str:
    return "–" if p.energy is None else format_quantity(getattr(p.energy, name), unit)


def _memory(prediction: Prediction) -> str:
    need = format_bytes(prediction.memory.peak_bytes)
    return f"{need} {'fits' if prediction.memory.fits else 'does not fit'}{prediction.memory_verdict().doubt}"


def remedies(predictions: Sequence[Prediction]) -> list[str]:
    """What lowers the time and is not in use, a sentence a regime, of the devices whose memory holds the step."""
    found: dict[str, list[str]] = {}
    for p in predictions:
        if p.memory.fits and p.total_s:
            left = [word for word in REMEDIES[p.regime] if not _used(p, word)]
            found.setdefault(f"{p.regime}-bound: try {', '.join(left)}", []).append(p.machine.name)
    return [
        sentence + (f" ({', '.join(names)})" if found.keys() - {sentence} else "") for sentence, names in found.items()
    ]


def _used(p: Prediction, remedy: str) -> bool:
    """Whether the step has this already, or nothing that it works on."""
    match remedy:
        case "autocast":
            return p.graph.autocast is not None or not precision(p.graph).startswith("float32")
        case "channels last":
            images = any(timing.kernel.family is Family.CONVOLUTION for timing in p.timings)
            return p.graph.channels_last or not images
        case "torch.compile":
            return p.execution.fused
        case "a CUDA graph":
            return p.execution.as_graph or p.machine.device.kind == "cpu"
        case "a GPU with more bandwidth":
            return p.placed_share > 0.5
    return False


def notebook_table(p: Prediction) -> str:
    """The step as HTML: its facts, its longest modules and its notes."""
    frame = p.by_module(1).head(_MODULES)
    modules = [
        [str(name) or "(root)", _time(row["total_s"]), f"{row['share']:.1%}", str(int(row["kernels"]))]
        for name, row in frame.iterrows()
    ]
    return notebook.block(
        lines(p)[0],
        notebook.table(["", p.machine.name], [(label, *values) for label, values in table_rows([p])]),
        notebook.table(["module", "time", "share", "kernels"], modules),
        notebook.paragraphs([*chain_sentences(p), f"counts: {p.coverage}", *(f"note: {note}" for note in p.notes)]),
    )


#: Of kernels and of the waits before them.
KERNEL_TERMS = ("ideal", "underuse", "memory", "launch", "overhead")


def grouped(
    spans: Sequence[Span], total_s: float, name: str, key: Callable[[Timing], str], joules: Sequence[float] = (),
    idle_w: float = 0.0,
) -> pd.DataFrame:  # fmt: skip
    """One row a group of kernels, the longest first; `total_s` includes the GPU's waits before them.

    joules: of each kernel and the wait before it, in which `idle_w` is drawn, for the columns energy_j, power_w (mean,
    waits included) and peak_w (of the kernel that draws most while it runs).

    What belongs to no kernel stands in none: copies of inputs before the first, synchronization after the last.
    """
    import pandas as pd

    rows: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for i, span in enumerate(spans):
        timing = span.timing
        row = rows[key(timing)]
        if joules:
            row["energy_j"] += joules[i]
            own_w = (joules[i] - idle_w * span.waited_s) / timing.total_s if timing.total_s else idle_w
            row["peak_w"] = max(row["peak_w"], own_w)
        row["kernels"] += 1
        row["total_s"] += timing.total_s + span.waited_s
        row["gpu_s"] += timing.total_s
        for term, seconds in timing.terms().items():
            row[f"{term}_s"] += seconds
        row["overhead_s"] += span.waited_s
        row["flop"] += float(timing.kernel.cost.flop)
        row["bytes"] += float(timing.kernel.bytes)
    columns = ["kernels", "total_s", "gpu_s", *(f"{term}_s" for term in KERNEL_TERMS), "flop", "bytes"]
    columns += ["energy_j", "peak_w"] if joules else []
    table = pd.DataFrame.from_dict(rows, orient="index", columns=columns).astype({"kernels": int})
    table.insert(1, "share", table["total_s"] / total_s if total_s else 0.0)
    if joules:
        table["power_w"] = (table["energy_j"] / table["total_s"]).where(table["total_s"] > 0, idle_w)
        table["peak_w"] = table.pop("peak_w")  # behind the mean
    table.index.name = name
    return table.sort_values("total_s", ascending=False, kind="stable")


# Why a step that torch.compile runs takes longer than in eager mode.


#: How much longer a compiled step takes before a note says so, and the least part of that which is a reason.
_TOLD, _REASON = 0.01, 0.1


def slower_note(compiled: Prediction, eager: Prediction) -> str:
    """That a compiled step takes at least 1 % longer than the eager one, and of what that consists; "" elsewhere."""
    longer_s = compiled.total_s - eager.total_s
    if longer_s <= _TOLD * eager.total_s:
        return ""
    reasons = ", and ".join(_reasons(compiled, eager, _REASON * longer_s))
    slower = f"{compiled.total_s / eager.total_s:.3g}× as long as eager ({_time(eager.total_s)})"
    return f"{compiled.execution.backend} on {compiled.machine.name}: {slower}: {reasons}"


def _reasons(compiled: Prediction, eager: Prediction, least_s: float) -> Iterator[str]:
    waits_s, kernels_s = compiled.terms()["overhead"] - eager.terms()["overhead"], compiled.gpu_s - eager.gpu_s
    if waits_s > least_s:
        entry = entry_of(compiled.host, compiled.execution, compiled.graph)
        around_s = entry.enter_s + entry.replay_s + entry.leave_s
        launches = (
            f" and {_time(compiled.host.compiled_launch)} for a Triton kernel" if compiled.execution.fused else ""
        )
        yield (
            f"kernels wait {_time(waits_s)} longer for the CPU, which takes {_time(around_s)} to enter the "
            f"step{launches}"
        )
    if kernels_s > least_s:
        yield f"kernels take {_time(kernels_s)} longer{_by_which(compiled)}"


def _by_which(compiled: Prediction) -> str:
    """The longest kernel that torch.compile has made; first of those that eager mode has nothing like."""
    made = [timing for timing in compiled.timings if timing.kernel.kind.startswith(f"{FUSED}.")]
    if not made:
        return ""
    longest = max(made, key=lambda timing: ("(" in timing.kernel.name, timing.total_s))
    return f", as {longest.kernel.name}: {_time(longest.total_s)}"
