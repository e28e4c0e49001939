"""By what an answer is made again: versions, what is known of its GPU and host, and a hash of the answer itself."""

from __future__ import annotations

import hashlib
import platform
from importlib.metadata import version

from rooflinekit import __version__
from rooflinekit.step.prediction import Prediction


def versions() -> str:
    """The versions that answers depend on beside their command."""
    return f"rooflinekit {__version__}, torch {version('torch')}, Python {platform.python_version()}"


def fingerprint(answer: str | bytes) -> str:
    """A dozen digits by which the same answer is known."""
    return hashlib.sha256(answer.encode() if isinstance(answer, str) else answer).hexdigest()[:12]


def constants_version(p: Prediction) -> str:
    """rooflinekit's version, and a hash of what it knows of the GPU and the host."""
    constants = p.machine.constants
    known = [
        p.machine.device.model_dump_json(), p.host.model_dump_json(), sorted(map(repr, constants.constants.items())),
        sorted(map(repr, constants.spreads.items())), sorted(constants.correlations.items()), repr(constants.power),
    ]  # fmt: skip
    return f"{__version__} {fingerprint(repr(known))}"
