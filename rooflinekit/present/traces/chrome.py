"""A predicted step as a Chrome trace: JSON that Perfetto (ui.perfetto.dev) and chrome://tracing open."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import rooflinekit
from rooflinekit.distributed.prediction import ParallelPrediction, Share
from rooflinekit.files import check_ending, write_text
from rooflinekit.ir.arguments import checked
from rooflinekit.ir.op import Op
from rooflinekit.step.entry import input_pipeline_of
from rooflinekit.step.prediction import Prediction
from rooflinekit.step.timeline import Span
from rooflinekit.study.compare.scaling import exposed_intervals, split

_CPU, _KERNELS, _WAITS, _COPIES, _LOADER = range(1, 6)
_STAGE, _FOR_OTHERS = 3, 4  # of a device among several
_Event = dict[str, Any]


@checked
def save_trace(prediction: Prediction | ParallelPrediction | Sequence[Prediction], path: str | Path) -> Path:
    """Writes predicted steps as a Chrome trace, one process each: the CPU, kernels, waits, copies and the loader.

    Kernels, waits and copies follow each other without overlap, and their durations add up to `total_s`, those of
    kernels to `gpu_s`; events of the CPU that are no waits add up to `cpu_s`. With `sync="none"` kernels stand as in a
    loop, where the CPU issues them during earlier steps. A step on several devices has a process for each kind of them,
    and one for the links. The same predictions give the same bytes. Returns the path.
    Raises OutputError for a name that does not end in .json, and for a place that cannot be written.
    """
    target = check_ending(path, ".json")
    if isinstance(prediction, ParallelPrediction):
        events = list(parallel_events(prediction, 1))
    else:
        steps = [prediction] if isinstance(prediction, Prediction) else list(prediction)
        events = [event for i, step in enumerate(steps, 1) for event in _events(step, i)]
    head = {"displayTimeUnit": "ms", "otherData": {"rooflinekit": rooflinekit.__version__, "events": "predicted"}}
    lines = ",\n".join(json.dumps(event, allow_nan=False) for event in events)
    text = f'{json.dumps(head)[:-1]}, "traceEvents": [\n{lines}\n]}}\n'
    # Valid JSON either way, and harmless in a page that holds it.
    write_text(text.replace("<", "\\u003c"), target)
    return target


def _events(p: Prediction, process: int) -> Iterator[_Event]:
    sizes = ", ".join(f"{name}={value}" for name, value in p.sizes.items())
    title = f"{p.graph_name} {p.mode}{f' ({sizes})' if sizes else ''} on {p.machine.name}, predicted"
    yield _meta("process_name", process, name=title)
    totals = {"total_s": p.total_s, "gpu_s": p.gpu_s, "cpu_s": p.cpu_s, "regime": p.regime, "terms": p.terms()}
    yield _meta("process_labels", process, labels=f"{p.regime}-bound", **totals)
    tracks = {_CPU: f"CPU issues ({p.host.name})", _KERNELS: "kernels", _WAITS: "waits", _COPIES: "copies of inputs"}
    for track, name in {**tracks, _LOADER: "data loader"}.items():
        yield _meta("thread_name", process, track, name=name)
        yield _meta("thread_sort_index", process, track, sort_index=track)
    for work in p.timeline.cpu:
        what: Op | str = work.what
        args: _Event = {"waits": True} if work.waits else {}
        if isinstance(what, Op):
            args = {"kind": what.kind, "module": what.module, "phase": str(what.phase)}
        name = what.name if isinstance(what, Op) else what
        yield _event(process, _CPU, "cpu", name, work.start_s, work.end_s, args)
    at = 0.0
    for copy in p.timeline.copies:
        yield from _wait(process, at, copy.start_s, "waits for the CPU")
        args = {"bytes": copy.transfer.bytes}
        yield _event(process, _COPIES, "copy", f"copy {copy.transfer.name}", copy.start_s, copy.end_s, args)
        at = copy.end_s
    for span in p.spans:
        yield from _wait(process, at, span.start_s, "waits for the CPU")
        kernel = span.timing.kernel
        yield _event(process, _KERNELS, str(kernel.family), kernel.name, span.start_s, span.end_s, _facts(span))
        at = span.end_s
    yield from _wait(process, at, at + p.timeline.tail_s, "end of the step")
    at += p.timeline.tail_s
    yield from _wait(process, at, at + p.timeline.starved_s, "waits for the loader")
    supply_s = input_pipeline_of(p.graph, p.machine.device, p.host, p.execution).supply_s
    if supply_s:
        args = {"samples_per_s": p.execution.loader_rate}
        yield _event(process, _LOADER, "loader", "samples of a step", 0.0, supply_s, args)


def _facts(span: Span) -> _Event:
    timing, kernel = span.timing, span.timing.kernel
    return {
        "kind": kernel.kind, "module": kernel.module, "phase": str(kernel.phase), "bound": timing.bound,
        "math": str(kernel.math), "flop": int(kernel.cost.flop), "bytes": int(kernel.bytes),
        "flop_per_byte": kernel.intensity, "waited_s": span.waited_s, "terms_s": timing.terms(),
        **({"algorithm": kernel.algorithm.name} if kernel.algorithm.name else {}),
        **({"note": timing.note} if timing.note else {}),
    }  # fmt: skip


def _wait(process: int, start_s: float, end_s: float, why: str) -> Iterator[_Event]:
    event = _event(process, _WAITS, "wait", why, start_s, end_s, {})
    if event["dur"] > 0:
        yield event


def _event(process: int, track: int, category: str, name: str, start_s: float, end_s: float, args: _Event) -> _Event:
    """A complete event. Both ends are rounded to picoseconds, so that durations of neighbours add up."""
    start, end = round(start_s * 1e6, 6), round(end_s * 1e6, 6)
    place = {"pid": process, "tid": track, "ts": start, "dur": round(end - start, 6)}
    return {"ph": "X", "cat": category, "name": name, **place, "args": args}


def parallel_events(p: ParallelPrediction, process: int) -> Iterator[_Event]:
    """A step on several devices: they as processes from this number on, then the links with a track for each group."""
    for share in p.shares:
        yield from _device(p, share, process)
        process += 1
    groups = list(dict.fromkeys(message.group for message in p.messages))
    title = f"links of {p.cluster.name}: {p.hidden_s:.3g} s hidden, {p.exposed_s:.3g} s exposed"
    yield _meta("process_name", process, 0, name=title)
    for track, group in enumerate(groups, 1):
        yield _meta("thread_name", process, track, name=group)
    exposed = exposed_intervals(p)
    for message in p.messages:
        timing = message.timing
        args = {
            "bytes": timing.size_bytes, "algorithm": timing.algorithm, "ranks": timing.ranks,
            "links": [link.name for link in timing.route.links], "bus_bandwidth": timing.bus_bandwidth,
        }  # fmt: skip
        if exposed is not None:
            parts = zip(("exposed_s", "hidden_s"), split(message, exposed), strict=True)
            args |= {name: sum(end - start for start, end in intervals) for name, intervals in parts}
        name = f"{timing.collective}: {message.key}"
        yield _event(process, 1 + groups.index(message.group), "link", name, message.start_s, message.end_s, args)


def _device(p: ParallelPrediction, share: Share, process: int) -> Iterator[_Event]:
    numbers = ", ".join(map(str, share.numbers))
    title = f"{share.prediction.machine.name} {numbers}: {p.graph_name}, predicted"
    yield _meta("process_name", process, 0, name=title)
    facts = {"total_s": share.total_s, "batch": share.batch, "terms": dict(share.terms)}
    yield _meta("process_labels", process, labels=f"{share.batch} samples", **facts)
    tracks = {_CPU: f"CPU issues ({share.prediction.host.name})", _KERNELS: "kernels", _STAGE: "stage"}
    for track, name in {**tracks, _FOR_OTHERS: "waits for others"}.items():
        yield _meta("thread_name", process, track, name=name)
    if share.run.slots:
        for what, start, end in share.run.slots:
            yield _event(process, _STAGE, "stage", what, start, end, {})
        return
    for what, start, end in share.run.cpu:
        yield _event(process, _CPU, "cpu", what, start, end, {})
    for span in share.run.spans:
        kernel = span.timing.kernel
        args = {"module": kernel.module, "phase": str(kernel.phase), "bound": span.timing.bound}
        yield _event(process, _KERNELS, str(kernel.family), kernel.name, span.start_s, span.end_s, args)
    for start, end in share.run.waits:
        yield _event(process, _FOR_OTHERS, "wait", "waits for others", start, end, {})


def _meta(what: str, process: int, track: int | None = None, /, **args: Any) -> _Event:
    return {"ph": "M", "name": what, "pid": process, **({} if track is None else {"tid": track}), "args": args}
