"""Traced graphs on disk, keyed by what they are made from: a long benchmark traces each network once.

The key is the workload's description together with everything that turns it into a graph: the versions of torch and of
the libraries that hold the models, and the text of the programs that build, trace and price. Whatever changes there
makes new keys; old files are only dead weight, and `rm -r` of the folder is always safe.
"""

from __future__ import annotations

import copyreg
import hashlib
import pickle
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import Any

import rooflinekit as rk
from rooflinekit.files import replacing

FOLDER = Path(__file__).parent / ".traces"
_MAKERS = ("errors.py", "ir", "tracing", "cost", "workflows.py")  # of the package, what a graph depends on
_LIBRARIES = ("torch", "timm", "transformers", "sympy")


def _unchangeable(values: dict[Any, Any]) -> MappingProxyType[Any, Any]:
    return MappingProxyType(values)


copyreg.pickle(MappingProxyType, lambda mapping: (_unchangeable, (dict(mapping),)))


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


def stored(workload: str, trace: Callable[[], rk.Graph], folder: Path = FOLDER) -> rk.Graph | NotTraced:
    """The workload's graph, without its model: from the folder, else traced and kept there.

    A workload that cannot be traced is remembered too, with the first line of the reason.
    """
    key = hashlib.sha256(_makers() + workload.encode()).hexdigest()[:32]
    file = folder / key[:2] / f"{key}.graph"
    if file.is_file():
        found: rk.Graph | NotTraced = pickle.loads(zlib.decompress(file.read_bytes()))
        return found
    try:
        found = replace(trace(), fx=None)
    except Exception as error:  # whatever a model of today does: the row is left out, and said to be
        found = NotTraced(reason=(str(error).splitlines() or [type(error).__name__])[0][:160])
    file.parent.mkdir(parents=True, exist_ok=True)
    with replacing(file) as beside:
        beside.write_bytes(zlib.compress(pickle.dumps(found), 1))
    return found
