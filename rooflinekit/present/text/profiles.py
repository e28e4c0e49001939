"""A profiled step in a terminal: its regime, its kernels, and beside a prediction its ops."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from rooflinekit.errors import printable
from rooflinekit.hardware.device import Device
from rooflinekit.present.text.tables import Cell, flat, print_first, print_table, say, table, whole
from rooflinekit.study.profile.matching import Validation
from rooflinekit.study.profile.memory import MemoryComparison
from rooflinekit.study.profile.profile import REPEATED, SMALL_S, Profile, ProfileComparison, device_note
from rooflinekit.units import said

if TYPE_CHECKING:
    import pandas as pd


_ROWS = 20  # of the table of kernels or ops; the rest is one line
_NAME = 80  # letters of a kernel's name: templates fill a page
_KINDS = 12  # of the table by kind; the rest is one line


def print_profile(profile: Profile, device: Device | None = None) -> None:
    """The regime first, then what it rests on, then the kernels; `device` is what it should have run on."""
    marked = f" by {profile.mark}" if profile.mark else ""
    on = f", {profile.device}" if profile.device else ""
    steps = f"{profile.steps} step{'s' if profile.steps > 1 else ''}{marked}{on}"
    say(f"{profile.file}: {steps}, {said(profile.wall_s, 's')} a step", _regime(profile))
    if profile.on_gpu:
        times = {
            "time of a step": profile.wall_s, "GPU busy": profile.busy_s, "GPU idle": profile.idle_s,
            "  waits for the CPU": profile.late_s,
            **({"  launch not in the trace": profile.unknown_s} if profile.unknown_s else {}),
        }  # fmt: skip
        rows = [
            (label, said(seconds, "s"), said(seconds / profile.wall_s, ".1%") if profile.wall_s else "")
            for label, seconds in times.items()
        ]
        rows += [("gaps", f"{profile.gaps:.4g}", ""), ("kernels, copies, fills", f"{profile.launched:.4g}", "")]
        rows.append(("  half of them take less than", said(profile.median_s, "s"), ""))
        if not whole():
            print_table(table(("", "a step", "share"), rows))
        columns: dict[str, Cell] = {
            "kernel": lambda row: _name(row["name"]), "count": ("count", ".0f"), "a step": ("total_s", "s"),
            "each": ("each_s", "s"), "share": ("share", ".1%"),
        }  # fmt: skip
        frame, what = profile.by_kernel().rename_axis("name"), " kernels"
    else:
        columns = {
            "kind of call": lambda row: _name(row["name"]), "calls": ("count", ".0f"), "itself": ("total_s", "s"),
        }  # fmt: skip
        frame, what = profile.by_call().rename_axis("name"), " kinds"
    print_first(columns, frame, _ROWS, what, numbers=frame.reset_index)
    if profile.devices > 1:
        say(f"note: {profile.devices} GPUs have kernels in the trace; the busiest is shown")
    if device is not None and (note := device_note(profile, device)):
        say(f"note: {note}")
    if profile.mark in ("", REPEATED):
        rounds = (
            f"the same calls come {profile.steps} times, and each time is taken for one; where they are equal layers "
            "of a single step, --mark '' counts the whole trace as one"
        )
        how = rounds if profile.mark else "the whole trace counts as one"
        say(f"note: no ProfilerStep# and no record_function marks a step: {how}")


def _regime(profile: Profile) -> str:
    if not profile.on_gpu:
        return "regime: CPU only: the trace holds no kernels of a GPU"
    busy = f"the GPU is busy for {profile.busy_share:.1%} of the time"
    if profile.regime == "GPU-bound":
        words = f"GPU-bound: {busy}"
    else:
        late = profile.late_s / profile.idle_s
        words = f"{profile.regime}: {busy}; for {late:.1%} of the rest it waits for the CPU to launch a kernel"
    sea = f"; a sea of small kernels: half take less than {said(SMALL_S, 's')}" if profile.small_kernels else ""
    return f"regime: {words}{sea}"


def print_profile_comparison(found: ProfileComparison) -> None:
    """The profile, then times, kinds of ops and ops beside the prediction's; for programs the ops alone."""
    if whole():
        _print_compared(found.by_op(), "op")
        return
    profile, p = found.profile, found.prediction
    print_profile(profile, p.machine.device)
    low, high = p.interval(0.9)
    rows = [
        ("time of a step", said(profile.wall_s, "s"), said(p.total_s, "s")),
        ("  90 % interval", "", _between(low, high)),
    ]
    if profile.on_gpu:
        rows.append(("GPU busy", said(profile.busy_s, "s"), said(p.gpu_s, "s")))
        rows.append(("kernels", f"{profile.launched:.4g}", str(p.launched)))
    rows.append(("regime", profile.regime, f"{p.regime}-bound"))
    print_table(table((f"{p.graph_name} on {p.machine.name}", "measured", "predicted"), rows))
    say(f"predicted / measured − 1: {found.error:+.1%} of the step, {found.gpu_error:+.1%} of the ops")
    _print_compared(found.by_kind(), "kind of op", _KINDS)
    _print_compared(found.by_op(), "op")
    say(*p.notes, before="note: ")


def _print_compared(frame: pd.DataFrame, what: str, most: int = _ROWS) -> None:
    """Measured beside predicted: kinds of ops with their difference, or ops with their module; the rest is one line."""
    most = len(frame) if whole() else most
    modules = ["module"] if "module" in frame else []
    times = ["measured_s", "predicted_s", *([] if modules else ["difference_s"])]
    rows = [
        (*map(_name, (name, *row[modules])), str(int(row["count"]) or ""), *(said(row[time], "s") for time in times))
        for name, row in frame.head(most).iterrows()
    ]
    if len(rest := frame.iloc[most:]):
        totals = (said(rest[time].sum(), "s") for time in times)
        rows.append((f"{len(rest)} more", *([""] * len(modules)), str(int(rest["count"].sum())), *totals))
    heads = (what, *modules, "calls", *(time.removesuffix("_s") for time in times))
    print_table(table(heads, rows, words=range(1 + len(modules))), frame.reset_index)


def print_memory_comparison(found: MemoryComparison) -> None:
    """Bytes allocated and reserved beside the prediction's, and the blocks in which the fullest moments differ."""
    profile, m = found.profile, found.prediction.memory
    sizes = (("allocated", profile.peak_bytes, m.peak_bytes), ("reserved", profile.reserved_bytes, m.reserved_bytes))
    lines = ((name, *(said(size, "GiB") for size in (a, b, a - b))) for name, a, b in sizes)
    print_table(table((f"memory in {profile.file}", "measured", "predicted", "difference"), lines))
    for title, held in (("more than predicted", found.more), ("less than predicted", found.less)):
        rows = [(_name(one.where), one.count, said(one.bytes, "GiB")) for one in held[:_ROWS]]
        if rest := held[_ROWS:]:
            total = said(sum(one.bytes for one in rest), "GiB")
            rows.append((f"{len(rest)} more", sum(one.count for one in rest), total))
        if held:
            print_table(table((title, "blocks", "bytes"), rows))
    if profile.devices > 1:
        say(f"note: {profile.devices} GPUs have blocks in the snapshot; GPU {profile.device}, the fullest, is shown")


def _name(text: object) -> str:
    """Cut where it would fill a page."""
    shown = printable(str(text))
    return shown if len(shown) <= _NAME else f"{shown[: _NAME - 1]}…"


def print_validation(found: Validation) -> None:
    """The answer first: is the prediction right? For programs the ops, or the step where they were not measured."""
    if whole() and found.ops:
        _print_compared(found.by_op(), "op")
        return
    sizes = ", ".join(f"{name} {value}" for name, value in found.sizes.items())
    threads = f", {found.threads} thread{'s' if found.threads > 1 else ''}" if found.threads else ""
    say(
        f"{found.model}, {found.mode}{f', {sizes}' if sizes else ''}, {found.execution['backend']}, "
        f"on {found.device}{threads}"
    )
    summary, predicted = found.summary, found.predicted
    rows = [
        ("time of a step", said(summary.median, "s"), said(predicted.total_s, "s")),
        ("  half of the samples, 90 % interval", _between(summary.low, summary.high),
         _between(predicted.low_s, predicted.high_s)),
        ("samples, outliers", f"{len(found.seconds)}, {summary.outliers}", ""),
        ("regime", "", predicted.regime),
    ]  # fmt: skip
    step = {"device": found.device, "measured_s": summary.median, **asdict(predicted)}
    print_table(table(("", "measured", "predicted"), rows), lambda: flat([step]))
    place = "inside" if found.inside else "above" if found.measured_s > predicted.high_s else "below"
    say(f"predicted / measured − 1: {found.error:+.1%}; the measured time is {place} the interval")
    if summary.noisy:
        say("note: the samples are noisy: end what else runs here, measure again")
    if found.ops:
        _print_compared(found.by_kind(), "kind of op", _KINDS)
        say("furthest from predicted:")
        for op in found.worst:
            where = f"{op.name} in {op.module}" if op.module else op.name
            say(f"  {where}: measured {said(op.measured_s, 's')}, predicted {said(op.predicted_s, 's')}")
    say(*(() if found.prediction is None else found.prediction.notes), before="note: ")


def _between(low: float, high: float) -> str:
    return f"{said(low, 's')} to {said(high, 's')}"
