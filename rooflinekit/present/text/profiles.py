"""A profiled step in a terminal: its regime, its kernels, and beside a prediction its ops."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from rooflinekit.errors import printable
from rooflinekit.hardware.device import Device
from rooflinekit.present.text.tables import console, print_table, table
from rooflinekit.study.profile.matching import OpTime, Validation
from rooflinekit.study.profile.memory import MemoryComparison
from rooflinekit.study.profile.profile import SMALL_S, Profile, ProfileComparison, device_note
from rooflinekit.study.profile.trace import REPEATED
from rooflinekit.units import format_quantity

if TYPE_CHECKING:
    import pandas as pd


_ROWS = 20  # of the table of kernels or ops; the rest is one line
_NAME = 80  # letters of a kernel's name: templates fill a page


def print_profile(profile: Profile, device: Device | None = None) -> None:
    """The regime first, then what it rests on, then the kernels; `device` is what it should have run on."""
    _say(_title(profile))
    _say(_regime(profile))
    if profile.on_gpu:
        rows = table("", "a step", "share")
        for label, seconds in _times(profile):
            rows.add_row(label, _seconds(seconds), f"{seconds / profile.wall_s:.1%}" if profile.wall_s else "")
        rows.add_row("gaps", f"{profile.gaps:.4g}", "")
        rows.add_row("kernels, copies, fills", f"{profile.launched:.4g}", "")
        rows.add_row("  half of them take less than", _seconds(profile.median_s), "")
        print_table(rows)
        _print_kernels(profile)
    else:
        _print_calls(profile)
    if profile.devices > 1:
        _say(f"note: {profile.devices} GPUs have kernels in the trace; the busiest is shown")
    if device is not None and (note := device_note(profile, device)):
        _say(f"note: {note}")
    if profile.mark in ("", REPEATED):
        _say(f"note: no ProfilerStep# and no record_function marks a step: {_unmarked(profile)}")


def _unmarked(profile: Profile) -> str:
    if not profile.mark:
        return "the whole trace counts as one"
    return (
        f"the same calls come {profile.steps} times, and each time is taken for one; where they are equal layers of a "
        "single step, --mark '' counts the whole trace as one"
    )


def _title(profile: Profile) -> str:
    steps = f"{profile.steps} step{'s' if profile.steps > 1 else ''}"
    marked = f" by {profile.mark}" if profile.mark else ""
    device = f", {profile.device}" if profile.device else ""
    return f"{profile.file}: {steps}{marked}{device}, {_seconds(profile.wall_s)} a step"


def _regime(profile: Profile) -> str:
    if not profile.on_gpu:
        return "regime: CPU only: the trace holds no kernels of a GPU"
    busy = f"the GPU is busy for {profile.busy_share:.1%} of the time"
    if profile.regime == "GPU-bound":
        words = f"GPU-bound: {busy}"
    else:
        late = profile.late_s / profile.idle_s
        words = f"{profile.regime}: {busy}; for {late:.1%} of the rest it waits for the CPU to launch a kernel"
    sea = f"; a sea of small kernels: half take less than {_seconds(SMALL_S)}" if profile.small_kernels else ""
    return f"regime: {words}{sea}"


def _times(profile: Profile) -> list[tuple[str, float]]:
    rows = [("time of a step", profile.wall_s), ("GPU busy", profile.busy_s), ("GPU idle", profile.idle_s)]
    rows.append(("  waits for the CPU", profile.late_s))
    if profile.unknown_s:
        rows.append(("  launch not in the trace", profile.unknown_s))
    return rows


def _print_kernels(profile: Profile) -> None:
    frame = profile.by_kernel()
    rows = table("kernel", "count", "a step", "each", "share")
    for name, row in frame.head(_ROWS).iterrows():
        times = (_seconds(row["total_s"]), _seconds(row["each_s"]))
        rows.add_row(_name(str(name)), str(int(row["count"])), *times, f"{row['share']:.1%}")
    print_table(rows)
    rest = frame.iloc[_ROWS:]
    if len(rest):
        _say(f"{len(rest)} more kernels take {_seconds(rest['total_s'].sum())} ({rest['share'].sum():.1%})")


def _print_calls(profile: Profile) -> None:
    frame = profile.by_call()
    rows = table("kind of call", "calls", "itself")
    for kind, row in frame.head(_ROWS).iterrows():
        rows.add_row(_name(str(kind)), str(int(row["count"])), _seconds(row["total_s"]))
    print_table(rows)
    rest = frame.iloc[_ROWS:]
    if len(rest):
        _say(f"{len(rest)} more kinds take {_seconds(rest['total_s'].sum())}")


def print_profile_comparison(found: ProfileComparison) -> None:
    """The profile, then times, kinds of ops and ops beside the prediction's."""
    profile, p = found.profile, found.prediction
    print_profile(profile, p.machine.device)
    out = console()
    low, high = p.interval(0.9)
    rows = table(f"{p.graph_name} on {p.machine.name}", "measured", "predicted")
    rows.add_row("time of a step", _seconds(profile.wall_s), _seconds(p.total_s))
    rows.add_row("  90 % interval", "", f"{_seconds(low)} to {_seconds(high)}")
    if profile.on_gpu:
        rows.add_row("GPU busy", _seconds(profile.busy_s), _seconds(p.gpu_s))
        rows.add_row("kernels", f"{profile.launched:.4g}", str(p.launched))
    rows.add_row("regime", profile.regime, f"{p.regime}-bound")
    print_table(rows)
    out.print(f"predicted / measured − 1: {found.error:+.1%} of the step, {found.gpu_error:+.1%} of the ops")
    print_table(kinds_table(found.by_kind()))
    _print_ops(found)
    for note in p.notes:
        _say(f"note: {note}")


def _print_ops(found: ProfileComparison) -> None:
    frame = found.by_op()
    rows = table("op", "module", "calls", "measured", "predicted")
    rows.columns[1].justify = "left"
    for name, row in frame.head(_ROWS).iterrows():
        times = (_seconds(row["measured_s"]), _seconds(row["predicted_s"]))
        rows.add_row(_name(str(name)), _name(str(row["module"])), str(int(row["count"]) or ""), *times)
    rest = frame.iloc[_ROWS:]
    if len(rest):
        times = (_seconds(rest["measured_s"].sum()), _seconds(rest["predicted_s"].sum()))
        rows.add_row(f"{len(rest)} more", "", str(int(rest["count"].sum())), *times)
    print_table(rows)


def print_memory_comparison(found: MemoryComparison) -> None:
    """Bytes allocated and reserved beside the prediction's, and the blocks in which the fullest moments differ."""
    profile, m = found.profile, found.prediction.memory
    rows = table(f"memory in {profile.file}", "measured", "predicted", "difference")
    for name, measured, predicted in (
        ("allocated", profile.peak_bytes, m.peak_bytes),
        ("reserved", profile.reserved_bytes, m.reserved_bytes),
    ):
        rows.add_row(name, _bytes(measured), _bytes(predicted), _bytes(measured - predicted))
    print_table(rows)
    for title, held in (("more than predicted", found.more), ("less than predicted", found.less)):
        rows = table(title, "blocks", "bytes")
        for one in held[:_ROWS]:
            rows.add_row(_name(one.where), str(one.count), _bytes(one.bytes))
        if rest := held[_ROWS:]:
            rows.add_row(f"{len(rest)} more", str(sum(o.count for o in rest)), _bytes(sum(o.bytes for o in rest)))
        if held:
            print_table(rows)
    if profile.devices > 1:
        _say(f"note: {profile.devices} GPUs have blocks in the snapshot; GPU {profile.device}, the fullest, is shown")


def _bytes(value: float) -> str:
    return format_quantity(value, "byte", binary=True).replace("-", "−")


def _name(text: str) -> Text:
    """As it is: brackets are no markup, and escapes are not acted upon."""
    shown = printable(text)
    return Text(shown if len(shown) <= _NAME else f"{shown[: _NAME - 1]}…")


def _say(line: str) -> None:
    console().print(printable(line), markup=False)


def _seconds(value: float) -> str:
    return format_quantity(value, "s").replace("-", "−")


# A measured step beside its prediction in a terminal: total, interval, regime, kinds of ops, the worst ops.


_KINDS = 12  # of the table by kind; the rest is one line


def print_validation(found: Validation) -> None:
    """The answer first: is the prediction right?"""
    out = console()
    sizes = ", ".join(f"{name} {value}" for name, value in found.sizes.items())
    threads = f", {found.threads} thread{'s' if found.threads > 1 else ''}" if found.threads else ""
    out.print(
        f"{found.model}, {found.mode}{f', {sizes}' if sizes else ''}, {found.execution['backend']}, "
        f"on {found.device}{threads}"
    )
    print_table(_totals(found))
    out.print(f"predicted / measured − 1: {found.error:+.1%}; the measured time is {_verdict(found)}")
    if found.summary.noisy:
        out.print("note: the samples are noisy: end what else runs here, measure again")
    if found.ops:
        print_table(kinds_table(found.by_kind()))
        out.print("furthest from predicted:")
        for op in found.worst:
            out.print(f"  {_place(op)}: measured {_seconds(op.measured_s)}, predicted {_seconds(op.predicted_s)}")
    for note in found.prediction.notes if found.prediction is not None else ():
        out.print(f"note: {note}")


def _totals(found: Validation) -> Table:
    summary, predicted = found.summary, found.predicted
    rows = table("", "measured", "predicted")
    rows.add_row("time of a step", _seconds(summary.median), _seconds(predicted.total_s))
    rows.add_row(
        "  half of the samples, 90 % interval",
        f"{_seconds(summary.low)} to {_seconds(summary.high)}",
        f"{_seconds(predicted.low_s)} to {_seconds(predicted.high_s)}",
    )
    rows.add_row("samples, outliers", f"{len(found.seconds)}, {summary.outliers}", "")
    rows.add_row("regime", "", predicted.regime)
    return rows


def _verdict(found: Validation) -> str:
    if found.inside:
        return "inside the interval"
    return f"{'above' if found.measured_s > found.predicted.high_s else 'below'} the interval"


def kinds_table(frame: pd.DataFrame) -> Table:
    """Kinds of ops, measured beside predicted: what `by_kind` gives."""
    rows = table("kind of op", "calls", "measured", "predicted", "difference")
    for kind, row in frame.head(_KINDS).iterrows():
        times = (_seconds(row[name]) for name in ("measured_s", "predicted_s", "difference_s"))
        rows.add_row(Text(printable(str(kind))), str(int(row["count"]) or ""), *times)
    rest = frame.iloc[_KINDS:]
    if len(rest):
        sums = (_seconds(rest[name].sum()) for name in ("measured_s", "predicted_s", "difference_s"))
        rows.add_row(f"{len(rest)} more", str(int(rest["count"].sum())), *sums)
    return rows


def _place(op: OpTime) -> str:
    return f"{op.name} in {op.module}" if op.module else op.name
