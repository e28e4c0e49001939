"""Small records of measurements, as files, and the cases in them."""

from pathlib import Path
from types import MappingProxyType

from rooflinekit.calibrate.bench.plan import Case
from rooflinekit.calibrate.bench.record_file import Head, Measurement, Recorded, write_record

HEAD = Head(device="nvidia-t4", plan="tiny", digest="d1", units=4, environment={"torch": "2.13", "driver": "580.65"})


def case(op: str, dtype: str = "fp32", threads: int = 0, **sizes: int) -> Case:
    return Case(op=op, dtype=dtype, sizes=MappingProxyType(sizes), threads=threads)


def record(name: str, rows: tuple[int, ...], **environment: str) -> None:
    measured = [
        Measurement(
            case=case("add", rows=count, cols=8), round=0, status="ok", timing="graph", inner=1,
            seconds=(1.0, 1.0, 2.0),
        )
        for count in rows
    ]  # fmt: skip
    failed = Measurement(case=case("mm", "fp8", m=8, n=8, k=8), round=0, status="unsupported", note="no such call")
    head = Head(device="nvidia-t4", plan="tiny", digest="d1", units=4, environment={**HEAD.environment, **environment})
    write_record(Recorded(head=head, measurements=(*measured, failed), finished=False), Path(name))
