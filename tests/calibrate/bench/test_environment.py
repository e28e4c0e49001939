"""What the host says of itself, and what is noticed of others."""

from pathlib import Path

from rooflinekit.calibrate.bench import environment


def test_the_governor_of_the_clocks(tmp_path: Path) -> None:
    assert environment.governor(tmp_path) == "unknown"  # as in virtual machines
    (tmp_path / "cpu0/cpufreq").mkdir(parents=True)
    (tmp_path / "cpu0/cpufreq/scaling_governor").write_text("powersave\n")
    assert environment.governor(tmp_path) == "powersave"


def test_the_environment_is_the_same_each_time() -> None:
    assert environment.host_environment() == environment.host_environment()


def test_load_is_known_after_the_block() -> None:
    with environment.watched_load() as found:
        assert found == {}
    assert set(found) == {"preemptions", "load"}
    assert min(found.values()) >= 0
