"""The plug-in of pytest, as a run of pytest has it: snapshots, limits, messages that name who is to blame."""

from pathlib import Path

import pytest
from torch import nn

import rooflinekit as rk
from rooflinekit.api import pytest_plugin
from rooflinekit.api.pytest_plugin import Roofline
from rooflinekit.errors import LockError

TESTS = """
from torch import nn
import rooflinekit as rk

def test_a(roofline):
    net = nn.Sequential(nn.Linear(512, {width}), nn.ReLU(), nn.Linear({width}, 4096))
    roofline(net, rk.Input(8192, 512), gpu="l4").assert_unchanged(kernels="+0 %")
"""


@pytest.fixture
def made(tmp_path: Path) -> Roofline:
    return Roofline(folder=tmp_path, name="test", update=False)


def net(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(512, width), nn.ReLU(), nn.Linear(width, 4096))


def test_limits_of_one_step(made: Roofline) -> None:
    step = made(net(512), rk.Input(8192, 512), gpu="l4")
    flop = 2 * 8192 * 512 * 512 + 2 * 8192 * 512 * 4096  # of the two products; ReLU and biases add less than 1 %
    step.assert_step(flop=f"<{1.01 * flop} FLOP", kernels="<4", memory="<1 GB", time="<1 s", bound="compute")
    with pytest.raises(
        AssertionError, match=r"(?s)Sequential on nvidia-l4: flop .* at most .* allowed.*aten\.addmm of 2"
    ):
        step.assert_step(flop=f"<{flop} FLOP")
    with pytest.raises(AssertionError, match="compute-bound, memory-bound required"):
        step.assert_step(bound="memory")
    with pytest.raises(LockError, match="is growth"):
        step.assert_step(time="+3 %")


def test_no_slower_than(made: Roofline) -> None:
    narrow, wide = (made(net(width), rk.Input(8192, 512), gpu="l4") for width in (512, 2048))
    narrow.assert_no_slower_than(wide)
    narrow.assert_no_slower_than(narrow.prediction)
    with pytest.raises(AssertionError, match=r"because of aten\.addmm in 0"):
        wide.assert_no_slower_than(narrow)
    wide.assert_no_slower_than(narrow, by="+900 %")


def test_snapshots_in_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # whether it is installed or not, it is loaded once

    def ran(width: int, *more: str) -> tuple[int, str]:
        file = tmp_path / f"test_{width}.py"
        file.write_text(TESTS.format(width=width))
        own = ["-q", "-p", "no:cacheprovider", f"--rootdir={tmp_path}", "-c", str(tmp_path / "none.ini")]
        return pytest.main([*own, str(file), *more], plugins=[pytest_plugin]), capfd.readouterr().out

    (tmp_path / "none.ini").write_text("[pytest]\n")
    status, out = ran(512)
    assert (status, "accept it with --roofline-update" in out) == (1, True)
    assert ran(512, "--roofline-update")[0] == 0
    assert '[test_a.locked."nvidia-l4"]' in (tmp_path / "roofline_snapshots.lock").read_text()
    status, out = ran(2048)
    assert (status, "because of aten.addmm in 0" in out) == (1, True)
