"""The host at hand: what is measured, and what is taken in proportion."""

import pytest

from rooflinekit.calibrate.bench.plan import Case
from rooflinekit.calibrate.bench.record_file import Measurement
from rooflinekit.calibrate.hosts.draft import host_cases, measure_host, slowness
from rooflinekit.errors import MeasureError
from rooflinekit.hardware.specs import load_host

BASE = load_host("generic-server")


class Slow:
    """Times every op three times as long as generic-server says, and nothing else."""

    def __init__(self, *, works: bool = True) -> None:
        self.works = works

    def time(self, case: Case, *, turn: int, warmup: int, samples: int, precision: float) -> Measurement:
        family, _, rest = case.op.partition("_")
        if family != "issue" or not self.works:
            return Measurement(case=case, round=turn, status="unsupported", note="broken")
        seconds = 3 * BASE.dispatch_s(rest.removesuffix("_backward"))
        return Measurement(case=case, round=turn, status="ok", timing="host", inner=1, seconds=(seconds,) * 5)

    def environment(self) -> dict[str, str]:
        return {}


def test_what_is_not_measured_is_in_proportion() -> None:
    found = measure_host("cuda", Slow(), "mine")
    assert found.name == "mine"
    assert found.dispatch_s("convolution") == pytest.approx(3 * BASE.dispatch_s("convolution"))
    assert slowness(found, BASE) == pytest.approx(3, rel=1e-2)
    for part in ("module", "compiled_launch", "guards", "guard", "graph_entry", "record"):
        assert getattr(found, part) == pytest.approx(3 * getattr(BASE, part), rel=1e-2)
    assert found.spread < BASE.spread
    assert not found.stands_for_any
    assert found.sources["dispatch"].startswith("rooflinekit measure --host-only")
    assert "generic-server times 3" in found.sources["guard"]


def test_a_host_without_a_gpu_is_measured_on_its_cpu() -> None:
    ops = {case.op for case in host_cases("cpu")}
    assert {"issue_default", "issue_view", "issue_default_backward"} <= ops
    assert "sync" not in ops
    assert {"sync", "launch_graph", "h2d_pinned"} <= {case.op for case in host_cases("cuda")}


def test_nothing_measured_is_an_error() -> None:
    with pytest.raises(MeasureError, match="host of mine: no op could be timed: broken"):
        measure_host("cpu", Slow(works=False), "mine")
