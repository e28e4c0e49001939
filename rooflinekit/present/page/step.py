"""The time line and the memory of a report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rooflinekit.ir.op import Op
from rooflinekit.present.figures.inline import Block, inline
from rooflinekit.present.figures.timeline import HALF, LANES, memory, timeline
from rooflinekit.present.page.templating import View
from rooflinekit.step.memory import Alive
from rooflinekit.step.memory_course import memory_course
from rooflinekit.step.prediction import Prediction
from rooflinekit.units import format_quantity


def step_of(p: Prediction) -> View:
    """The step on its two queues, and the bytes in use over it."""
    m = p.memory
    texts = (
        f"Time line of {p.graph_name}: the lanes of CPU and GPU",
        (f"Memory in use over the step: {_bytes(m.peak_bytes)} at the most, of {_bytes(m.capacity)}"),
    )
    blocks = [*_cpu(p), *_gpu(p)]
    return {
        "timelines": inline(lambda: timeline(p), "timeline", texts[0], (200, 175), blocks=blocks),
        "memories": inline(lambda: memory(p), "memory", texts[1], (250, 220)),
        "accounts": _accounts([moment.alive for moment in memory_course(p)]),
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


def _block(lane: str, start_s: float, end_s: float, text: str) -> Block:
    return Block(start=start_s, end=end_s, bottom=LANES[lane] - HALF, top=LANES[lane] + HALF, text=text)


def _cpu(p: Prediction) -> Iterator[Block]:
    for work in p.timeline.cpu:
        name = work.what.name if isinstance(work.what, Op) else work.what
        doing = name if work.waits or not isinstance(work.what, Op) else f"issues {name}"
        text = f"CPU {doing}, {format_quantity(work.end_s - work.start_s, 's')}"
        yield _block("CPU", work.start_s, work.end_s, text)


def _gpu(p: Prediction) -> Iterator[Block]:
    for copy in p.timeline.copies:
        text = f"copy of {copy.transfer.name}, {format_quantity(copy.transfer.seconds, 's')}"
        yield _block("GPU", copy.start_s, copy.end_s, text)
    for span in p.spans:
        kernel, timing = span.timing.kernel, span.timing
        where = f" in {kernel.module}" if kernel.module else ""
        text = f"{kernel.name}{where}, {kernel.phase}, {format_quantity(timing.total_s, 's')}, {timing.bound}-bound"
        yield _block("GPU", span.start_s, span.end_s, text)
