"""What several tests stand on: round numbers, so that expected values can be worked out by hand."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

os.environ["ROOFLINEKIT_CACHE_DIR"] = ""  # no trace outlives a test, but where `kept_traces` or one of its own says so
os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # read once: whichever test profiles first must find it
import browser
import torch  # noqa: F401  imported once here, so that no test pays for it in its own time
from command_line import Run, caller
from hypothesis import settings
from round_numbers import DEVICE, constants

from rooflinekit.hardware.device import Device
from rooflinekit.hardware.host import Host
from rooflinekit.timing.machine import Machine

settings.register_profile("untimed", deadline=None)  # a busy machine breaks no law
settings.load_profile("untimed")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """The program, called from where the tests run."""
    return caller(monkeypatch, capsys)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The test's own folder, in which it runs."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[browser.Browser]:
    """A browser without a page."""
    with browser.browser(tmp_path_factory.mktemp("browser")) as found:
        yield found


@pytest.fixture
def interruptible() -> Iterator[None]:
    """This process, and programs started here, heed SIGINT, which a shell has those ignore that it runs in the
    background.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session")
def _folder_of_traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("traces")


@pytest.fixture
def kept_traces(monkeypatch: pytest.MonkeyPatch, _folder_of_traces: Path) -> None:
    """What the program has traced it keeps for the next test that asks for this: pages show few networks, often."""
    monkeypatch.setenv("ROOFLINEKIT_CACHE_DIR", str(_folder_of_traces))


@pytest.fixture
def device() -> Device:
    """10 TFLOP/s fp32, 100 TFLOP/s fp16 matrix, 1 TB/s: ridge points 10 and 100. Special functions: 1 T/s."""
    return DEVICE


@pytest.fixture
def machine(device: Device) -> Machine:
    return Machine.of(device, constants())


@pytest.fixture
def host() -> Host:
    """10 µs an op, 1 µs a view or further launch, half of it in backward and under inductor, no latency."""
    return Host(
        name="round-host",
        description="round numbers",
        dispatch={"default": 10e-6, "view": 1e-6},
        backward_factor=0.5,
        launch=1e-6,
        launch_latency=0.0,
        sync=0.0,
        step=0.0,
        compiled_launch=5e-6,
        compiled_call=0.5,
        guards=30e-6,
        guard=0.0,
        graph_entry=0.0,
        dram_bandwidth=1e11,
        copy_bandwidth_pageable=1e10,
        copy_bandwidth_pinned=1e10,
    )


@pytest.fixture
def net(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A target: the class or function Net of the module's text NET, in a file of its own."""
    file = tmp_path / "net.py"
    file.write_text(request.module.NET, encoding="utf-8")
    return f"{file}:Net"
