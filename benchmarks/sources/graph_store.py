"""Traced graphs on disk, keyed by what they are made from: a long benchmark traces each network once.

The key is the workload's description together with everything that turns it into a graph: the versions of torch and of
the libraries that hold the models, and the text of the programs that build, trace and price. Whatever changes there
makes new keys; old files are only dead weight, and `rm -r` of the folder is always safe.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path

import rooflinekit as rk
from rooflinekit.files import replacing, write_text
from rooflinekit.study.sweep.plan import opened, packed

FOLDER = Path(__file__).parents[1] / ".traces"
_MAKERS = ("errors.py", "ir", "tracing", "cost", "api/predict.py")  # of the package, what a graph depends on
_LIBRARIES = ("torch", "timm", "transformers", "sympy")


@dataclass(frozen=True, slots=True, kw_only=True)
class NotTraced:
    """Why there is no graph of a workload."""

    reason: str


@cache
def _makers() -> bytes:
    """A digest of the programs and libraries that make graphs."""
    package = Path(rk.__file__).parent
    files = [Path(__file__).parent / "networks.py"]
    for name in _MAKERS:
        files += [package / name] if name.endswith(".py") else sorted((package / name).rglob("*.py"))
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.read_bytes())
    digest.update(" ".join(version(library) for library in _LIBRARIES).encode())
    return digest.digest()


def stored(workload: str, trace: Callable[[], rk.Graph]) -> rk.Graph | NotTraced:
    """The workload's graph, without its model: from the folder, else traced and kept there.

    A workload that cannot be traced is remembered too, with the first line of the reason.
    """
    key = hashlib.sha256(_makers() + workload.encode()).hexdigest()[:32]
    graphs, failures = (FOLDER / key[:2] / f"{key}.{kind}" for kind in ("trace", "txt"))
    if graphs.is_file():
        return opened(zlib.decompress(graphs.read_bytes()))[0]
    if failures.is_file():
        return NotTraced(reason=failures.read_text(encoding="utf-8"))
    graphs.parent.mkdir(parents=True, exist_ok=True)
    try:
        graph = trace()
    except Exception as error:  # whatever a model of today does: the row is left out, and said to be
        reason = (str(error).splitlines() or [type(error).__name__])[0][:160]
        write_text(reason, failures)
        return NotTraced(reason=reason)
    payload = packed(graph, ())
    with replacing(graphs) as beside:
        beside.write_bytes(zlib.compress(payload, 1))
    return opened(payload)[0]
