"""The time line and the memory of a report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rooflinekit.ir.op import Op
from rooflinekit.present.page.charts.timeline import (
    NARROW,
    WIDE,
    Segment,
    memory_chart,
    phase_segments,
    timeline_chart,
)
from rooflinekit.present.page.templating import View
from rooflinekit.step.memory import Alive
from rooflinekit.step.memory_course import memory_course
from rooflinekit.step.prediction import Prediction
from rooflinekit.units import format_quantity


def step_of(p: Prediction) -> View:
    """The step on its two queues, and the bytes in use over it."""
    lanes = {"phase": list(_phases(p)), "CPU": list(_cpu(p)), "GPU": list(_gpu(p))}
    if p.machine.device.kind == "cpu":
        lanes = {"phase": lanes["phase"], "issue": lanes["CPU"], "kernels": lanes["GPU"]}
    end_s = max([p.total_s, *(segments[-1].end_s for segments in lanes.values() if segments)])
    moments = memory_course(p)
    course = [(moment.start_s, moment.alive.bytes_of) for moment in moments]
    m = p.memory
    layouts = (("wide", WIDE), ("narrow", NARROW))
    return {
        "timelines": tuple((name, timeline_chart(lanes, end_s, layout)) for name, layout in layouts),
        "memories": tuple((name, memory_chart(course, end_s, m.capacity, layout)) for name, layout in layouts),
        "accounts": _accounts([moment.alive for moment in moments]),
        "copies": bool(p.timeline.copies),
        "peak": _bytes(m.peak_bytes),
        "peak_op": m.peak_op,
        "reserved": _bytes(m.reserved_bytes),
        "context": _bytes(m.context_bytes),
        "capacity": _bytes(m.capacity),
        "used": f"{(m.reserved_bytes + m.context_bytes) / m.capacity:.1%}",
        "fits": m.fits,
    }


def _bytes(size: float) -> str:
    return format_quantity(size, "byte", binary=True)


def _accounts(course: Sequence[Alive]) -> tuple[View, ...]:
    """What is alive at the fullest moment, what stays first."""
    if not course:
        return ()
    fullest = max(course, key=lambda alive: alive.total_bytes)
    return tuple(
        {"name": name, "bytes": _bytes(size), "share": f"{size / fullest.total_bytes:.0%}"}
        for name, size in fullest.bytes_of.items()
        if size
    )


def _phases(p: Prediction) -> Iterator[Segment]:
    return phase_segments([(s.start_s, s.end_s, s.timing.kernel.phase.value) for s in p.spans])


def _cpu(p: Prediction) -> Iterator[Segment]:
    for work in p.timeline.cpu:
        name = work.what.name if isinstance(work.what, Op) else work.what
        doing = name if work.waits or not isinstance(work.what, Op) else f"issues {name}"
        text = f"CPU {doing}, {format_quantity(work.end_s - work.start_s, 's')}"
        yield Segment(start_s=work.start_s, end_s=work.end_s, look="waits" if work.waits else "issues", text=text)


def _gpu(p: Prediction) -> Iterator[Segment]:
    for copy in p.timeline.copies:
        text = f"copy of {copy.transfer.name}, {format_quantity(copy.transfer.seconds, 's')}"
        yield Segment(start_s=copy.start_s, end_s=copy.end_s, look="input", text=text)
    for span in p.spans:
        kernel, timing = span.timing.kernel, span.timing
        where = f" in {kernel.module}" if kernel.module else ""
        text = f"{kernel.name}{where}, {kernel.phase}, {format_quantity(timing.total_s, 's')}, {timing.bound}-bound"
        yield Segment(start_s=span.start_s, end_s=span.end_s, look=timing.bound, text=text)
