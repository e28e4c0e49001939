"""What the host says of itself, and what is noticed of others."""

from pathlib import Path

import pytest

from rooflinekit.calibrate.bench import timers
from rooflinekit.hardware.detection import ROOT


def test_the_governor_of_the_clocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ROOT, str(tmp_path))
    assert timers.governor() == "unknown"  # as in virtual machines
    folder = tmp_path / "sys/devices/system/cpu/cpu0/cpufreq"
    folder.mkdir(parents=True)
    (folder / "scaling_governor").write_text("powersave\n")
    assert timers.governor() == "powersave"


def test_the_environment_is_the_same_each_time() -> None:
    assert timers.host_environment() == timers.host_environment()


def test_load_is_known_after_the_block() -> None:
    with timers.watched_load() as found:
        assert found == {}
    assert set(found) == {"preemptions", "load"}
    assert min(found.values()) >= 0
