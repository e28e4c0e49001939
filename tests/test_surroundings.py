"""The suite itself: it passes on other CPUs, in other places and languages, and with what a shell sets otherwise."""

import os
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from machines import AMX, CPUS, folder_of

from rooflinekit.hardware.detection import ROOT as SYSTEM_ROOT

ROOT = Path(__file__).parents[1]
#: What meets the machine most, in seconds; and with the slow ones, all that `make check` runs and what starts programs.
QUICK = (
    "tests/calibrate/local_hardware/test_cpu.py", "tests/calibrate/bench/test_environment.py",
    "tests/hardware/test_detection.py", "tests/test_files.py", "tests/test_units.py",
)  # fmt: skip
PROGRAMS = (
    "tests/cli/test_calibrate.py", "tests/cli/test_measure.py", "tests/cli/test_stopping.py", "tests/api",
    "tests/calibrate",
)  # fmt: skip
#: Does what a shell does, and then becomes pytest.
BEGIN = """
import os, signal, sys
if "background" in sys.argv[1]:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
if "one core" in sys.argv[1]:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """In what the suite is run."""

    variables: Mapping[str, str] = field(default_factory=dict)
    flags: str = ""  # of another CPU
    umask: int = -1
    shell: str = ""  # "background": SIGINT is ignored. "one core": this process may use no other
    shuffled: bool = False  # the files in another order
    elsewhere: bool = False  # temporary files on another file system, where there is one


NO_HOME = {"HOME": "/proc", "XDG_CACHE_HOME": "/proc/cache", "XDG_CONFIG_HOME": "/proc/config"}  # no one writes there
ALONE = {
    **{f"a CPU with {name}": Surroundings(flags=flags) for name, flags in CPUS.items()},
    "LANG=C": Surroundings(variables={"LANG": "C", "LC_ALL": "C"}),
    "German": Surroundings(variables={"LANG": "de_DE.UTF-8", "LC_ALL": "de_DE.UTF-8"}),
    "Kolkata": Surroundings(variables={"TZ": "Asia/Kolkata"}),
    "40 columns": Surroundings(variables={"COLUMNS": "40"}),
    "umask 077": Surroundings(umask=0o077),
    "a HOME that cannot be written": Surroundings(variables=NO_HOME),
    "in the background": Surroundings(shell="background"),
    "one core": Surroundings(shell="one core"),
    "temporary files elsewhere": Surroundings(elsewhere=True),
    "another order": Surroundings(shuffled=True),
}
TOGETHER = Surroundings(
    variables={"LANG": "C", "LC_ALL": "C", "TZ": "Asia/Kolkata", "COLUMNS": "40", **NO_HOME},
    flags=AMX, umask=0o077, shell="background, one core", shuffled=True, elsewhere=True,
)  # fmt: skip


def failed(around: Surroundings, paths: list[str], folder: Path) -> str:
    """What pytest says of these files, in one process, where one of them fails."""
    files = sorted(file for path in paths for file in _files(ROOT / path))
    if around.shuffled:
        random.Random(32).shuffle(files)
    variables = {name: word for name, word in os.environ.items() if not name.startswith(("PYTEST_", "LC_"))}
    if around.flags:
        variables[SYSTEM_ROOT] = str(folder_of(folder / "machine", flags=around.flags))
    shared = "/dev/shm"
    other = shared if around.elsewhere and os.access(shared, os.W_OK) else folder
    with tempfile.TemporaryDirectory(dir=other) as temporary:
        command = [sys.executable, "-c", BEGIN, around.shell, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        said = folder / "said"
        with said.open("w") as out:  # no pipe, which would be waited for as long as anybody holds its other end
            done = subprocess.run(
                [*command, *map(str, files)],
                env={**variables, "TMPDIR": temporary, **around.variables},
                umask=around.umask, cwd=ROOT, stdout=out, stderr=out, check=False,
            )  # fmt: skip
    return said.read_text()[-4000:] if done.returncode else ""


def _files(path: Path) -> list[Path]:
    return [*path.rglob("test_*.py")] if path.is_dir() else [path]


def test_a_part_of_it_passes_in_all_of_them_together(tmp_path: Path) -> None:
    assert not failed(TOGETHER, list(QUICK), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", ALONE)
def test_the_fast_half_passes_in_each_of_them(tmp_path: Path, name: str) -> None:
    listed = re.search(r"^FAST := (.*?)(?<!\\)$", (ROOT / "Makefile").read_text(), re.MULTILINE | re.DOTALL)
    assert listed is not None
    assert not failed(ALONE[name], [*listed[1].replace("\\\n", " ").split(), *PROGRAMS], tmp_path)
