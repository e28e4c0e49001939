"""A step on several devices as events of a Chrome trace: a process for each kind of device, and one for the links."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rooflinekit.strategies.prediction import ParallelPrediction, Share
from rooflinekit.study.compare.scaling import exposed_intervals, split

_CPU, _KERNELS, _STAGE, _WAITS = 1, 2, 3, 4
_Event = dict[str, Any]


def parallel_events(p: ParallelPrediction, process: int) -> Iterator[_Event]:
    """Devices as processes from this number on, then the links with a track for each group."""
    for share in p.shares:
        yield from _device(p, share, process)
        process += 1
    groups = list(dict.fromkeys(message.group for message in p.messages))
    yield _named(
        "process_name", process, 0, f"links of {p.cluster.name}: {p.hidden_s:.3g} s hidden, {p.exposed_s:.3g} s exposed"
    )
    for track, group in enumerate(groups, 1):
        yield _named("thread_name", process, track, group)
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
    yield _named("process_name", process, 0, f"{share.prediction.machine.name} {numbers}: {p.graph_name}, predicted")
    labels = {"total_s": share.total_s, "batch": share.batch, "terms": dict(share.terms)}
    yield {"ph": "M", "name": "process_labels", "pid": process, "args": {"labels": f"{share.batch} samples", **labels}}
    for track, name in {
        _CPU: f"CPU issues ({share.prediction.host.name})",
        _KERNELS: "kernels",
        _STAGE: "stage",
        _WAITS: "waits for others",
    }.items():
        yield _named("thread_name", process, track, name)
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
        yield _event(process, _WAITS, "wait", "waits for others", start, end, {})


def _named(what: str, process: int, track: int, name: str) -> _Event:
    return {"ph": "M", "name": what, "pid": process, "tid": track, "args": {"name": name}}


def _event(process: int, track: int, category: str, name: str, start_s: float, end_s: float, args: _Event) -> _Event:
    """A complete event, rounded to picoseconds."""
    start, end = round(start_s * 1e6, 6), round(end_s * 1e6, 6)
    place = {"pid": process, "tid": track, "ts": start, "dur": round(end - start, 6)}
    return {"ph": "X", "cat": category, "name": name, **place, "args": args}
