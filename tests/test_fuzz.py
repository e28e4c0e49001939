"""Command lines and networks that nobody wrote, by a seed: an answer or one line, no traceback, no law broken.

None of them takes long, or much memory. The slow parts run 10,000 of them, 1,000 each. What fails is told by its cause,
with a seed of each.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from random import Random
from types import FrameType

import pytest
from command_line import Run, caller
from networks import BATCHES, GPUS, launched, network

import rooflinekit as rk

MODEL = "from torch import nn\n\n\ndef net():\n    return nn.Linear(4, 4)\n"
#: Commands that neither measure nor go on for minutes, with what makes them whole.
COMMANDS = (
    ("predict", "{model}", "-i", "batch,4", "--batch", "2", "--gpu", "nvidia-l4"),
    ("summary", "{model}", "-i", "batch,4", "--batch", "2", "--gpu", "nvidia-l4"),
    ("compare", "{model}", "-i", "batch,4", "--batch", "2", "--gpu", "nvidia-l4", "--gpu", "nvidia-t4"),
    ("explain", "{model}", "-i", "batch,4", "--batch", "2", "--gpu", "nvidia-l4", "--gpu", "nvidia-t4"),
    ("sweep", "{model}", "-i", "batch,4", "--batch", "1,2", "--gpu", "nvidia-l4"),
    ("transfer", "{model}", "-i", "batch,4", "--batch", "2", "--gpu", "nvidia-l4", "--to", "nvidia-t4",
     "--measured", "1 ms"),
    ("collective", "all-reduce", "1 MiB", "--cluster", "dgx-a100"),
    ("devices",), ("clusters",), ("hosts",), ("check", "{folder}/nothing.yaml"), ("doctor",),
)  # fmt: skip
OPTIONS = (
    "--batch", "--gpu", "--execution", "--mode", "--dtype", "--autocast", "--host", "--power-limit", "--sm-clock",
    "-i", "--price-per-hour", "--prices", "--measured", "--cluster", "--json", "--form", "--terms", "--like", "--burst",
    "--top", "--vendor", "--sort", "--depth", "--to", "--out", "--optimizer", "--loss", "--assume",
)  # fmt: skip
VALUES = (
    "", " ", "0", "-1", "1e300", "nan", "inf", "1:1000000000", "1,2,", "9" * 400, "x" * 10_000, "é\u202e", "\x1b[31m",
    "a\nb", "1 GB", "1e400 W", "-5 W", "nvidia-l4", "compiled", "training", "fp16", "batch,batch", "batch,-4",
    "{folder}", "{folder}/none/x.json", "/dev/zero", "/dev/full", "../..", "[", "{}", "--", "=", "%s%n", "2.0", "1.12",
    "∞", "0x10",
)  # fmt: skip


def command_line(random: Random, folder: Path) -> list[str]:
    words = list(random.choice(COMMANDS))
    for _ in range(random.randint(1, 3)):
        at = random.randrange(1, len(words) + 1)
        kind = random.random()
        if kind < 0.4:
            words += [random.choice(OPTIONS), random.choice(VALUES)]
        elif kind < 0.8 and at < len(words):
            words[at] = random.choice(VALUES)
        elif kind < 0.9:
            del words[at:]
        else:
            words.insert(at, random.choice((*VALUES, *OPTIONS)))
    return [word.replace("{model}", f"{folder}/model.py:net").replace("{folder}", str(folder)) for word in words]


def called(run: Run, folder: Path, seed: int) -> None:
    words = command_line(Random(seed), folder)
    result = run(*words)
    assert result.status in (0, 1, 2), f"status {result.status}"
    assert "Traceback" not in result.err, "a traceback"
    assert not set("\x1b\u202e") & set(result.out + result.err), "letters that a terminal acts upon"


def obeys(seed: int) -> None:
    graph, random = network(seed)
    gpu, (smaller, larger) = random.choice(GPUS), sorted(random.sample(BATCHES, 2))
    for execution in ("eager", "compiled"):
        a, b = (rk.predict(graph, gpu, batch=batch, execution=execution) for batch in (smaller, larger))
        low, high = b.interval()
        assert low <= b.total_s <= high, "a time outside its own interval"
        assert b.graph.flop >= a.graph.flop, "fewer FLOP for a larger batch"
        assert sum(b.terms().values()) == pytest.approx(b.total_s), "terms do not add up"
        # rows of a normalization wait less for a gain and a shift that they share
        fewer = execution == "compiled" and launched(b) < launched(a)
        assert fewer or b.total_s >= a.total_s * (1 - 1e-3), "a larger batch is faster"
        slower = execution == "compiled" and b.total_s > 1.01 * rk.predict(graph, gpu, batch=larger).total_s
        assert slower == any("as long as eager" in note for note in b.notes), "slower than eager, and not said"


def test_letters_of_a_path_that_a_terminal_acts_upon_are_written_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    run, out = caller(monkeypatch, capsys), tmp_path / "a\x1b[31m.csv"
    given = ("-i", "batch,4", "--batch", "2", "--gpu", "nvidia-l4", "--out", out)
    result = run("sweep", f"{tmp_path}/model.py:net", *given)
    assert result.status == 0
    assert out.exists()
    assert "a\\x1b[31m.csv" in result.out + result.err
    assert "\x1b" not in result.out + result.err


LONGEST_S = 30  # of a case; the usual one takes a tenth of a second, and the machine may be busy
MOST_BYTES = 2 * 10**9  # that cases take beside what Python and torch have when they begin


on_linux = pytest.mark.skipif(sys.platform != "linux", reason="limits of time and memory as Linux has them")


class HangError(BaseException):
    """A case takes too long. No `except Exception` holds it up."""


def _too_long(number: int, frame: FrameType | None) -> None:
    signal.setitimer(signal.ITIMER_REAL, 1)  # again, where a callback has lost it
    raise HangError


@contextlib.contextmanager
def in_time() -> Iterator[None]:
    before = signal.signal(signal.SIGALRM, _too_long)
    try:
        signal.setitimer(signal.ITIMER_REAL, LONGEST_S)
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def in_bounded_memory() -> Iterator[None]:
    """Within it, whoever asks for more gets a MemoryError."""
    import resource  # not on Windows

    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (taken + MOST_BYTES, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def failures(cases: Iterable[tuple[Callable[[int], None], int]]) -> dict[str, list[int]]:
    """Seeds of the cases that fail, by cause."""
    found: dict[str, list[int]] = defaultdict(list)
    for case, seed in cases:
        try:
            with in_time():
                case(seed)
        except HangError as error:
            found[f"{case.__name__}: hangs {_place(error)}"].append(seed)
        except AssertionError as error:
            found[f"{case.__name__}: {str(error).splitlines()[0]}"].append(seed)
        except Exception as error:
            found[f"{case.__name__}: {type(error).__name__} {_place(error)}"].append(seed)
    return found


def _place(error: BaseException) -> str:
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "/rooflinekit/" in f.filename]
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""


def told(found: dict[str, list[int]]) -> str:
    return "\n".join(f"{len(seeds)} × {cause}, such as seed {seeds[0]}" for cause, seeds in found.items())


@on_linux
def test_what_hangs_or_takes_too_much_memory_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "LONGEST_S", 0.05)

    def hanging(seed: int) -> None:
        while True:
            with contextlib.suppress(Exception):
                sum(range(1000))

    with in_bounded_memory():
        assert told(failures([(hanging, 3)])) == "1 × hanging: hangs , such as seed 3"
        found = failures([(lambda seed: bytearray(seed * 10**9) and None, 3)])
    assert told(found) == "1 × <lambda>: MemoryError , such as seed 3"


PARTS = [pytest.param(range(at, at + 1000), id=str(at), marks=pytest.mark.slow) for at in range(0, 10_000, 1000)]


@on_linux
@pytest.mark.parametrize("seeds", [pytest.param(range(24), id="few"), *PARTS])
def test_what_nobody_wrote(
    seeds: range, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    run = caller(monkeypatch, capsys)

    def commands(seed: int) -> None:
        called(run, tmp_path, seed)

    with in_bounded_memory():
        found = failures((obeys if seed % 8 == 0 else commands, seed) for seed in seeds)
    assert not found, told(found)
