"""No kept trace is an answer after what the model rests on has changed: by every channel that a model can read."""

from __future__ import annotations

import contextlib
import gc
import importlib
import io
import os
import py_compile
import sqlite3
import subprocess
import sys
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from programs import LIMIT_S
from safetensors.torch import save_file

import rooflinekit as rk
from rooflinekit.api import trace_basis
from rooflinekit.api.targets import TargetTrace
from rooflinekit.api.trace_store import FOLDER, TraceStore
from rooflinekit.tracing.targets import load_target

#: A model of DEPTH layers without bias: 2 · 8·4·4 FLOP each.
BODY = """
from torch import nn
Net = lambda: nn.Sequential(*[nn.Linear(4, 4, bias=False) for _ in range(int(DEPTH))])
"""
LAYER = 2 * 8 * 4 * 4

#: Models of this file leave files open.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")

Change = Callable[[Path, pytest.MonkeyPatch, int], None]


def text(name: str) -> Change:
    """A file that holds the number of layers."""

    def write(folder: Path, _: pytest.MonkeyPatch, depth: int) -> None:
        path = folder / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(f"DEPTH = {depth}\n" if name.endswith(".py") else str(depth))

    return write


def same_size_and_time(name: str) -> Change:
    """As `text`, but neither size nor time of the file tell."""

    def write(folder: Path, monkeypatch: pytest.MonkeyPatch, depth: int) -> None:
        text(name)(folder, monkeypatch, depth)
        os.utime(folder / name, ns=(10**18, 10**18))

    return write


def variable(name: str) -> Change:
    """An environment variable that holds the number of layers."""
    return lambda _, monkeypatch, depth: monkeypatch.setenv(name, str(depth))


def appears(name: str, content: str = "DEPTH = 5\n") -> Change:
    """A file that is there the second time."""

    def write(folder: Path, _: pytest.MonkeyPatch, depth: int) -> None:
        if depth == 5:
            (folder / name).parent.mkdir(exist_ok=True, parents=True)
            (folder / name).write_text(content)

    return write


def files(number: Callable[[int], int] = lambda depth: depth) -> Change:
    """As many files in a folder as layers."""

    def write(folder: Path, _: pytest.MonkeyPatch, depth: int) -> None:
        (folder / "parts").mkdir(exist_ok=True)
        for i in range(number(depth)):
            (folder / "parts" / f"{i}.txt").write_text("")

    return write


def linked(folder: Path, _: pytest.MonkeyPatch, depth: int) -> None:
    """A link that is turned to another file."""
    for number in (2, 5):
        (folder / f"to{number}.txt").write_text(str(number))
    (folder / "link.txt").unlink(missing_ok=True)
    (folder / "link.txt").symlink_to(f"to{depth}.txt")


def search_path(folder: Path, monkeypatch: pytest.MonkeyPatch, depth: int) -> None:
    """Another folder with another version of a module comes first."""
    text(f"v{depth}/version.py")(folder, monkeypatch, depth)
    monkeypatch.syspath_prepend(str(folder / f"v{depth}"))


def working_folder(folder: Path, monkeypatch: pytest.MonkeyPatch, depth: int) -> None:
    text(f"w{depth}/depth.txt")(folder, monkeypatch, depth)
    monkeypatch.chdir(folder / f"w{depth}")


def database(folder: Path, _: pytest.MonkeyPatch, depth: int) -> None:
    with contextlib.closing(sqlite3.connect(folder / "depth.db")) as base:
        base.execute("create table if not exists t (n)")
        base.execute("delete from t")
        base.execute("insert into t values (?)", (depth,))
        base.commit()


def archive(folder: Path, monkeypatch: pytest.MonkeyPatch, depth: int) -> None:
    with zipfile.ZipFile(folder / "a.zip", "w") as file:
        file.writestr("zipped_depth.py", f"DEPTH = {depth}\n")
    importlib.invalidate_caches()


def arguments(_: Path, monkeypatch: pytest.MonkeyPatch, depth: int) -> None:
    monkeypatch.setattr(sys, "argv", ["rooflinekit", str(depth)])


def home(folder: Path, monkeypatch: pytest.MonkeyPatch, depth: int) -> None:
    text(f"home{depth}/.depth")(folder, monkeypatch, depth)
    monkeypatch.setenv("HOME", str(folder / f"home{depth}"))


def tool(folder: Path, monkeypatch: pytest.MonkeyPatch, depth: int) -> None:
    monkeypatch.chdir(folder)
    appears("tools/rk_tool")(folder, monkeypatch, depth)
    if depth == 5:
        (folder / "tools" / "rk_tool").chmod(0o755)


def dated(folder: Path, _: pytest.MonkeyPatch, depth: int) -> None:
    (folder / "data").touch()
    os.utime(folder / "data", (depth, depth))


def compiled(folder: Path, monkeypatch: pytest.MonkeyPatch, depth: int) -> None:
    text("c.py")(folder, monkeypatch, depth)
    py_compile.compile(str(folder / "c.py"), cfile=str(folder / "only_compiled.pyc"))


def compiled_before(folder: Path, monkeypatch: pytest.MonkeyPatch, depth: int) -> None:
    same_size_and_time("m_depth.py")(folder, monkeypatch, depth)
    if depth == 2:
        py_compile.compile(str(folder / "m_depth.py"))


_HERE = "import pathlib; HERE = pathlib.Path(__file__).parent\n"

#: How a model learns its number of layers → what changes it from 2 to 5.
QUICK: dict[str, tuple[str, Change]] = {
    "its own source": ("from m_depth import DEPTH", text("m_depth.py")),
    "a variable with a default": ('import os; DEPTH = os.environ.get("RK_LAYERS", 2)', variable("RK_LAYERS")),
    "getenv": ('import os; DEPTH = os.getenv("RK_LAYERS")', variable("RK_LAYERS")),
    "bytes of a variable": ('import os; DEPTH = os.environb[b"RK_LAYERS"]', variable("RK_LAYERS")),
    "all variables": ('import os; DEPTH = dict(os.environ)["RK_LAYERS"]', variable("RK_LAYERS")),
    "variables in a loop": (
        'import os; DEPTH = [v for k, v in os.environ.items() if k == "RK_LAYERS"][0]', variable("RK_LAYERS")
    ),
    "whether a variable is set": (
        'import os; DEPTH = 5 if "RK_MANY" in os.environ else 2',
        lambda _, monkeypatch, depth: monkeypatch.setenv("RK_MANY", "1") if depth == 5 else None,
    ),
    "the home folder": ('import os; DEPTH = open(os.path.expanduser("~/.depth")).read()', home),
    "a text": (_HERE + 'DEPTH = (HERE / "depth.txt").read_text()', text("depth.txt")),
    "a text of the same size and time": (
        _HERE + 'DEPTH = (HERE / "depth.txt").read_text()', same_size_and_time("depth.txt")
    ),
    "a link": (_HERE + 'DEPTH = (HERE / "link.txt").read_text()', linked),
    "a name in bytes": (
        _HERE + 'import os; DEPTH = open(os.fsencode(HERE / "depth.txt")).read()', text("depth.txt")
    ),
    "a file to be read and written": (_HERE + 'DEPTH = open(HERE / "depth.txt", "r+").read()', text("depth.txt")),
    "a descriptor": (
        _HERE + 'import os; DEPTH = os.read(os.open(HERE / "depth.txt", os.O_RDONLY), 9)', text("depth.txt")
    ),
    "after chdir": (
        _HERE + 'import os; _o = os.getcwd(); os.chdir(HERE); DEPTH = open("depth.txt").read(); os.chdir(_o)',
        text("depth.txt"),
    ),
    "the working folder": ('DEPTH = open("depth.txt").read()', working_folder),
    "a module that appears": (
        "try:\n    from local_conf import DEPTH\nexcept ImportError:\n    DEPTH = 2", appears("local_conf.py")
    ),
    "a file that appears": (
        _HERE + 'try:\n    DEPTH = open(HERE / "x").read()\nexcept OSError:\n    DEPTH = 2', appears("x", "5")
    ),
    "whether a file is there": (_HERE + 'DEPTH = 5 if (HERE / "flag").exists() else 2', appears("flag")),
    "isfile": (_HERE + 'import os; DEPTH = 5 if os.path.isfile(HERE / "flag") else 2', appears("flag")),
    "names in a folder": (_HERE + 'import os; DEPTH = len(os.listdir(HERE / "parts"))', files()),
    "glob": (_HERE + 'DEPTH = len(list((HERE / "parts").glob("*.txt")))', files()),
    "the size of a file": (
        _HERE + 'import os; DEPTH = os.path.getsize(HERE / "data")',
        lambda folder, _, depth: (folder / "data").write_text("x" * depth) and None,
    ),
    "a search path": ("from version import DEPTH", search_path),
    "another program": (
        _HERE + 'import subprocess; DEPTH = subprocess.check_output(["cat", HERE / "depth.txt"])', text("depth.txt")
    ),
    "a shell": (
        _HERE + 'import os; _p = os.popen(f"cat {HERE}/depth.txt"); DEPTH = _p.read(); _p.close()', text("depth.txt")
    ),
    "a database": (
        _HERE + 'import sqlite3; DEPTH = sqlite3.connect(HERE / "depth.db").execute("select n from t").fetchone()[0]',
        database,
    ),
    "arguments": ("import sys; DEPTH = sys.argv[-1]", arguments),
    "a word among the arguments": ('import sys; DEPTH = 5 if "5" in sys.argv else 2', arguments),
    "where a link leads": (_HERE + 'import os; DEPTH = os.readlink(HERE / "link.txt")[2]', linked),
    "what stat tells": (_HERE + 'DEPTH = int((HERE / "data").stat().st_mtime)', dated),
    "rights": (
        _HERE + 'import stat; DEPTH = 5 if (HERE / "data").stat().st_mode & stat.S_IXUSR else 2',
        lambda folder, _, depth: (folder / "data").touch() or (folder / "data").chmod(0o700 if depth == 5 else 0o600),
    ),
    "code that Python has compiled before": ("from m_depth import DEPTH", compiled_before),
    "below a folder's descriptor": (
        _HERE + 'import os; DEPTH = os.read(os.open("depth.txt", os.O_RDONLY, dir_fd=os.open(HERE, os.O_RDONLY)), 9)',
        text("depth.txt"),
    ),
    "standard input": (
        "import sys; DEPTH = sys.stdin.read()",
        lambda _, monkeypatch, depth: monkeypatch.setattr(sys, "stdin", io.StringIO(str(depth))),
    ),
    "the GPUs that are seen": (
        'import ctypes, os; DEPTH = os.environ.get("CUDA_VISIBLE_DEVICES", 2)', variable("CUDA_VISIBLE_DEVICES")
    ),
}  # fmt: skip

SLOW: dict[str, tuple[str, Change]] = {
    "a module of the same size and time": (
        "import m_depth, importlib; DEPTH = importlib.reload(m_depth).DEPTH", same_size_and_time("m_depth.py")
    ),
    "setdefault": ('import os; DEPTH = os.environ.setdefault("RK_LAYERS", "2")', variable("RK_LAYERS")),
    "expandvars": ('import os; DEPTH = os.path.expandvars("$RK_LAYERS")', variable("RK_LAYERS")),
    "names of variables": (
        'import os; DEPTH = 5 if any(k.startswith("RK_MA") for k in os.environ) else 2',
        lambda _, monkeypatch, depth: monkeypatch.setenv("RK_MANY", "1") if depth == 5 else None,
    ),
    "copied variables": ('import os; DEPTH = os.environ.copy()["RK_LAYERS"]', variable("RK_LAYERS")),
    "JSON": (_HERE + 'import json; DEPTH = json.load(open(HERE / "depth.json"))', text("depth.json")),
    "YAML": (_HERE + 'import yaml; DEPTH = yaml.safe_load(open(HERE / "depth.yaml"))', text("depth.yaml")),
    "pathlib's bytes": (_HERE + 'DEPTH = (HERE / "depth.txt").read_bytes()', text("depth.txt")),
    "numpy": (_HERE + 'import numpy; DEPTH = numpy.loadtxt(HERE / "depth.txt")', text("depth.txt")),
    "pandas": (
        _HERE + 'import pandas; DEPTH = pandas.read_csv(HERE / "depth.txt", header=None)[0][0]', text("depth.txt")
    ),
    "memory mapped": (
        _HERE + 'import mmap; _f = open(HERE / "depth.txt"); DEPTH = mmap.mmap(_f.fileno(), 0, prot=1)[:]',
        text("depth.txt"),
    ),
    "fileinput": (
        _HERE + 'import fileinput\nwith fileinput.input([str(HERE / "depth.txt")]) as _f:\n    DEPTH = next(_f)',
        text("depth.txt"),
    ),
    "linecache": (
        _HERE + 'import linecache; linecache.clearcache(); DEPTH = linecache.getline(str(HERE / "depth.txt"), 1)',
        text("depth.txt"),
    ),
    "code that is run": (
        _HERE + 'import runpy; DEPTH = runpy.run_path(str(HERE / "c.py"))["DEPTH"]', text("c.py")
    ),
    "exec": (_HERE + 'exec("DEPTH=" + open(HERE / "c.txt").read())', text("c.txt")),
    "a package's module": ("from pack.m_depth import DEPTH", text("pack/m_depth.py")),
    "a package that appears": (
        "try:\n    from packed.part import DEPTH\nexcept ImportError:\n    DEPTH = 2", appears("packed/part.py")
    ),
    "a module that shadows another": (
        "import sys; sys.modules.pop('this', None)\ntry:\n    from antigravity_depth import DEPTH\n"
        "except ImportError:\n    DEPTH = 2",
        appears("antigravity_depth/__init__.py"),
    ),
    "find_spec": (
        'import importlib.util; DEPTH = 5 if importlib.util.find_spec("extra_depth") else 2', appears("extra_depth.py")
    ),
    "a module in an archive": (
        _HERE + 'import sys; sys.path.insert(0, str(HERE / "a.zip"))\ntry:\n    from zipped_depth import DEPTH\n'
        "finally:\n    del sys.path[0]",
        archive,
    ),
    "scandir": (_HERE + 'import os; DEPTH = len(list(os.scandir(HERE / "parts")))', files()),
    "walk": (_HERE + 'import os; DEPTH = sum(len(f) for _, _, f in os.walk(HERE / "parts"))', files()),
    "isdir": (_HERE + 'import os; DEPTH = 5 if os.path.isdir(HERE / "d") else 2', appears("d/x")),
    "access": (_HERE + 'import os; DEPTH = 5 if os.access(HERE / "flag", os.R_OK) else 2', appears("flag")),
    "which": (
        'import os, shutil; DEPTH = 5 if shutil.which("rk_tool", path="tools") else 2',
        tool,
    ),
    "a file's time": (
        _HERE + 'import os; DEPTH = os.path.getmtime(HERE / "data")',
        dated,
    ),
    "torch.load": (
        _HERE + 'import torch; DEPTH = torch.load(HERE / "depth.pt")',
        lambda folder, _, depth: torch.save(depth, folder / "depth.pt"),
    ),
    "torch.from_file": (
        _HERE + 'import torch; DEPTH = torch.from_file(str(HERE / "b"), size=1, dtype=torch.uint8, device="cpu")',
        lambda folder, _, depth: (folder / "b").write_bytes(bytes([depth])) and None,
    ),
    "safetensors": (
        _HERE + 'from safetensors.torch import load_file\nDEPTH = load_file(HERE / "s", device="cpu")["n"]',
        lambda folder, _, depth: save_file({"n": torch.tensor(depth)}, folder / "s"),
    ),
    "fork": (
        _HERE + 'import os\nr, w = os.pipe()\nif not os.fork():\n'
        '    os.write(w, open(HERE / "depth.txt", "rb").read())\n    os._exit(0)\nDEPTH = os.read(r, 9)',
        text("depth.txt"),
    ),
    "os.system": (
        _HERE + 'import os; DEPTH = os.waitstatus_to_exitcode(os.system(f"exit $(cat {HERE}/depth.txt)"))',
        text("depth.txt"),
    ),
    "ctypes": (
        'import ctypes; _c = ctypes.CDLL(None); _c.getenv.restype = ctypes.c_char_p; DEPTH = _c.getenv(b"RK_LAYERS")',
        variable("RK_LAYERS"),
    ),
    "parsed arguments": (
        'import argparse; _p = argparse.ArgumentParser(); _p.add_argument("n"); DEPTH = _p.parse_args().n', arguments,
    ),
    "a compiled module without source": (
        "import sys; sys.modules.pop('only_compiled', None)\nfrom only_compiled import DEPTH",
        compiled,
    ),
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def _settled() -> None:
    """What is alive by now is left alone when a test looks for what it has left behind."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def traced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], rk.Graph]]:
    """The model of tmp_path/net.py as a new process would trace it, with traces kept beside it."""
    monkeypatch.setenv(FOLDER, str(tmp_path / "cache"))
    monkeypatch.delenv("RK_LAYERS", raising=False)
    before = set(sys.modules)

    def trace() -> rk.Graph:
        for name in set(sys.modules) - before:
            if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "") or ""):
                del sys.modules[name]
        importlib.invalidate_caches()
        monkeypatch.setattr(trace_basis, "_record", trace_basis.Record())
        trace_basis._seeded.clear()
        with warnings_of_forks():
            return TargetTrace(
                target=f"{tmp_path / 'net.py'}:Net", args=(rk.Input("batch", 4),), options={}, optimizer=None,
                loss=None, following=lambda _: contextlib.nullcontext(),
            )().at(batch=8)  # fmt: skip

    yield trace
    for name in [name for name, module in sys.modules.items() if str(tmp_path) in str(getattr(module, "__file__", ""))]:
        del sys.modules[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gc.collect()  # files that models have left open


@contextlib.contextmanager
def warnings_of_forks() -> Iterator[None]:
    """A process of several threads is warned when it forks."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.parametrize(
    ("source", "change"),
    [
        *(pytest.param(*way, id=name) for name, way in QUICK.items()),
        *(pytest.param(*way, id=name, marks=pytest.mark.slow) for name, way in SLOW.items()),
    ],
)
def test_no_stale_trace(
    traced: Callable[[], rk.Graph], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, change: Change
) -> None:
    (tmp_path / "net.py").write_text(source + BODY)
    for depth in (2, 5):
        change(tmp_path, monkeypatch, depth)
        assert traced().matrix_flop == depth * LAYER


def reasons(folder: Path) -> list[str]:
    (kept,) = TraceStore(folder / "cache").kept()
    return list(kept.reasons)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import time; DEPTH = 2 + int(time.time()) % 3", "calls time.time"),
        ("import random; DEPTH = random.randint(2, 5)", "calls random.randint"),
        ("import numpy; DEPTH = numpy.random.randint(2, 5)", "calls numpy.random.randint"),
        ("import os; DEPTH = 2 + os.urandom(1)[0] % 3", "calls os.urandom"),
        ("import secrets; DEPTH = 2 + secrets.randbelow(3)", "calls random._urandom"),
        ("import random; DEPTH = 2 + random.Random().randint(0, 3)", "calls Random.seed"),
        ("import random; random.Random(7); DEPTH = 2 + random.Random().randint(0, 3)", "calls Random.seed"),
        ("import random; random.seed(7); random.seed(); DEPTH = 2 + random.randint(0, 3)", "calls random.seed"),
        (
            "import numpy; numpy.random.seed(7); DEPTH = 2 + numpy.random.default_rng().integers(3)",
            "calls numpy.random.default_rng",
        ),
        ("DEPTH = 2 + len(open('/proc/self/stat').read()) % 3", "reads /proc/self/stat"),
        ("import dbm; DEPTH = 2", "calls dbm"),
        ("import uuid; DEPTH = 2 + uuid.uuid4().int % 3", "calls uuid.uuid4"),
        ("from datetime import datetime; DEPTH = 2 + datetime.now().second % 3", "calls now"),
        ("import ctypes; DEPTH = 2 + ctypes.CDLL(None).getpid() % 3", "loads a library"),
        ("import socket; socket.getaddrinfo('localhost', 80); DEPTH = 2", "asks the network"),
        ("import os; os.listdir(os.open('/', os.O_RDONLY)); DEPTH = 2", "lists a folder by its descriptor"),
    ],
)
def test_what_cannot_be_followed_is_not_kept(
    traced: Callable[[], rk.Graph], tmp_path: Path, source: str, reason: str
) -> None:
    (tmp_path / "net.py").write_text(source + BODY)
    traced()
    assert any(reason in one for one in reasons(tmp_path))


@pytest.mark.parametrize(
    "source",
    [
        "DEPTH = 2",
        "import random; random.seed(7); DEPTH = 2 + random.randint(0, 3)",
        "import numpy; DEPTH = 2 + numpy.random.default_rng(7).integers(3)",
        'import os; os.environ["RK_OWN"] = "2"; DEPTH = os.environ["RK_OWN"]',
    ],
)
def test_what_is_known_is_kept(traced: Callable[[], rk.Graph], tmp_path: Path, source: str) -> None:
    log = tmp_path / "log"
    (tmp_path / "net.py").write_text(f"open({str(log)!r}, 'a').write('x')\n{source}{BODY}")
    assert traced() == traced()
    assert (reasons(tmp_path), log.read_text()) == ([], "x")


def test_what_changes_while_it_is_read_is_not_kept(traced: Callable[[], rk.Graph], tmp_path: Path) -> None:
    (tmp_path / "count").write_text("1")
    (tmp_path / "net.py").write_text(
        _HERE + 'DEPTH = int((HERE / "count").read_text()) + 1; (HERE / "count").write_text(str(DEPTH))' + BODY
    )
    assert [traced().matrix_flop // LAYER for _ in range(3)] == [2, 3, 4]
    assert reasons(tmp_path) == [f"{tmp_path / 'count'} changed while the model was read"]


def test_two_targets_may_have_modules_of_the_same_name(tmp_path: Path) -> None:
    for depth in (2, 5):
        text(f"of{depth}/m_depth.py")(tmp_path, pytest.MonkeyPatch(), depth)
        (tmp_path / f"of{depth}" / "net.py").write_text("from m_depth import DEPTH" + BODY)
    nets = [load_target(f"{tmp_path}/of{depth}/net.py:Net").model for depth in (2, 5)]
    assert [len(net) for net in nets] == [2, 5]


def test_libraries_of_another_environment_are_libraries(tmp_path: Path) -> None:
    """A Python without packages of its own, to which a path gives this one's."""
    (tmp_path / "net.py").write_text("DEPTH = 2" + BODY)
    folders = (str(Path(module.__file__ or "").parents[1]) for module in (rk, torch))
    given = {"PYTHONPATH": os.pathsep.join(folders), FOLDER: str(tmp_path / "cache")}
    python = str(Path(sys.base_prefix, "bin", f"python3.{sys.version_info.minor}"))
    command = [python, "-m", "rooflinekit", "predict", f"{tmp_path / 'net.py'}:Net", "--input", "8,4", "--gpu", "l4"]
    for seed in "12":  # by which Python orders sets
        environment = {**os.environ, **given, "PYTHONHASHSEED": seed}
        subprocess.run(command, env=environment, capture_output=True, timeout=LIMIT_S, check=True)
    assert reasons(tmp_path) == []  # of one trace, which answered twice


@pytest.mark.parametrize(
    "listed",
    [
        [["nothing", "a", "b"]],  # no kind
        [["file", "a"]],
        [["variable", str(i), ""] for i in range(100_001)],
        [["file", "a", f"{2**27} 0"], ["file", "b", f"{2**27 + 1} 0"]],  # 256 MiB and a byte
    ],
    ids=["kind", "short", "many", "large"],
)
def test_what_no_kept_trace_rests_on(listed: list[list[str]]) -> None:
    with pytest.raises(ValueError, match=r"entries|kinds|unpack"):
        trace_basis.checked(listed)
