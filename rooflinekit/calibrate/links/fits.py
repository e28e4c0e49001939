"""Constants of collectives: what each is, and their files: the shipped one, and over it those of machines at hand."""

from __future__ import annotations

from functools import cache
from importlib.resources.abc import Traversable
from pathlib import Path
from types import MappingProxyType
from typing import Annotated

from pydantic import Field

from rooflinekit.calibrate.fitting.constants import Description
from rooflinekit.calibrate.fitting.document import FitFile, check_ranges, read_fit, spreads_in, write_constants
from rooflinekit.errors import SpecError
from rooflinekit.hardware.specs import data_dir
from rooflinekit.model.collectives import LinkConstants

_FITTED = "starting point of the fit"
_STATED = "stated default"


_d = Description

#: Of a kind of link, or of a generation of GPUs. `between`: how far those may be from each other, in log units.
LINK_CONSTANTS: dict[str, Description] = {
    "share": _d("1", "bandwidth that a long message gets, of the link's in one direction",
                0.8, 0.002, 1.0, 0.3, 0.15, _FITTED),
    "ceiling": _d("byte/s", "rate of a long message through the host's memory, where the link would allow more",
                  12e9, 1e8, 1e12, 0.7, 1.0, f"{_FITTED}: what NCCL's source takes PCIe 3 for (graph/topo.h)"),
    "hop": _d("s", "from one device to the next, of an empty message", 1e-6, 1e-8, 1e-3, 0.7, 0.5, _FITTED),
    "chunk": _d("s", "what a piece of a message costs on its way through the devices, beside its bytes",
                5e-6, 1e-9, 1e-3, 0.7, 0.5, _FITTED),
    "start": _d("s", "the kernel's start and end, and the gap before it", 5e-6, 1e-6, 1e-3, 0.5, 0.4, _FITTED),
    "peer_start": _d("s", "more of it where every device sends to every other one",
                     2e-6, 1e-8, 2e-5, 0.7, 0.3, _FITTED),
    "copy_share": _d("1", "rate at which a rank's own part is copied, of DRAM bandwidth",
                     0.3, 0.001, 1.0, 0.5, 0.3, _FITTED),
    "nvls_start": _d("s", "latency of adding up in the switch", 1.5e-5, 1e-6, 2e-4, 0.7, 0.0, _FITTED),
    "nvls_share": _d("1", "bandwidth while the switch adds up, of the link's in one direction",
                     0.65, 0.2, 1.0, 0.3, 0.0, _FITTED),
}  # fmt: skip

LINK_PARTS = ("share", "hop", "chunk")
HOST_PARTS = ("ceiling", "hop", "chunk")  # of those through the host's memory, where the ceiling hides the share
DEVICE_PARTS = ("start", "peer_start", "copy_share")

#: Kinds of links whose bandwidth a datasheet does not say so that kinds could be compared: how far they may be off.
_FAR = {"pcie-host": 1.5, "pcie-sockets": 2.0, "loopback": 2.0}


def between(name: str, of: str) -> float:
    """How far a kind of link, or a generation of devices, may be from the others in this constant, in log units."""
    if of in _FAR or of == "cpu":
        return max(LINK_CONSTANTS[name].between, _FAR.get(of, 2.0))
    return LINK_CONSTANTS[name].between


#: What no campaign measures, by "NAME OF-WHAT": value, standard error relative to it, source.
STATED: dict[str, tuple[float, float, str]] = {
    "share ethernet": (0.75, 0.2, f"{_STATED}: TCP of one stream"),
    "hop ethernet": (1.0e-5, 0.7, f"{_STATED}: NCCL's proxy thread and two copies, beside the network's own latency"),
    "chunk ethernet": (2.0e-5, 0.7, _STATED),
    "share infiniband": (
        0.90,
        0.1,
        f"{_STATED}: 45 of 50 GB/s, as nccl-tests are reported to reach",
    ),
    "hop infiniband": (4.0e-6, 0.7, f"{_STATED}: NCCL's proxy thread, beside the network's own latency"),
    "chunk infiniband": (8.0e-6, 0.7, _STATED),
    "share loopback": (0.05, 0.7, f"{_STATED}; `rooflinekit calibrate --device cpu` measures it"),
    "hop loopback": (2.5e-5, 0.7, f"{_STATED}; `rooflinekit calibrate --device cpu` measures it"),
    "chunk loopback": (1.0e-5, 1.0, f"{_STATED}; `rooflinekit calibrate --device cpu` measures it"),
    "copy_share cpu": (0.02, 0.7, f"{_STATED}; `rooflinekit calibrate --device cpu` measures it"),
    "start cpu": (3.0e-5, 0.7, f"{_STATED}; `rooflinekit calibrate --device cpu` measures it"),
}


SCHEMA_VERSION = 1
LINKS = "links"
TOLERANCE = 0.01  # by which a value of two fits may differ, or a tenth of its standard error where that is more
ERROR_TOLERANCE = 0.1  # by which a standard error or a spread may


class _File(FitFile):
    schema_version: Annotated[int, Field(alias="schema", ge=SCHEMA_VERSION, le=SCHEMA_VERSION)]


def load_links(file: Path | None = None) -> LinkConstants:
    """The constants of collectives as shipped, or a file's over them. Raises SpecError for a file that is none."""
    shipped = _shipped()
    if file is None:
        return shipped
    given = _read(file, str(file))
    check_ranges(given, LINK_CONSTANTS, str(file))
    over = _constants(given)
    return LinkConstants(
        constants=MappingProxyType({**shipped.constants, **over.constants}),
        spreads=MappingProxyType({**shipped.spreads, **over.spreads}),
    )


@cache
def _shipped() -> LinkConstants:
    return _constants(_read(data_dir("calibration") / "fits" / f"{LINKS}.yaml", f"calibration/fits/{LINKS}.yaml"))


def _constants(file: _File) -> LinkConstants:
    return LinkConstants(
        constants=MappingProxyType(
            {
                key: LINK_CONSTANTS[key.split()[0]].constant(v.value, v.stderr, v.source)
                for key, v in file.constants.items()
            }
        ),
        spreads=spreads_in(file.spreads),
    )


def write_links(constants: LinkConstants, file: Path, name: str, head: str) -> None:
    """Writes one file. `head`: what the comment at the top says. Raises OutputError where it cannot."""
    write_constants(
        file, head, schema=SCHEMA_VERSION, name=name, constants=constants.constants, spreads=constants.spreads
    )


def links_difference(constants: LinkConstants, file: Path) -> str:
    """The first number by which a file differs from a fit, in words; "" where none does. Raises SpecError."""
    there = _read(file, str(file))
    if missing := sorted(set(constants.constants) ^ set(there.constants)):
        return f"{file}: {missing[0]} is in one of the file and the fit alone"
    for key, constant in constants.constants.items():
        for word, made, stands, tolerance in (
            (key, constant.value, there.constants[key].value, max(TOLERANCE, 0.1 * constant.stderr)),
            (f"standard error of {key}", constant.stderr, there.constants[key].stderr, ERROR_TOLERANCE),
        ):
            if abs(made - stands) > tolerance * made:
                return f"{file}: {word} is {stands:.4g}; the campaigns give {made:.4g}"
    for name, spread in constants.spreads.items():
        stands = there.spreads[name].random if name in there.spreads else 0.0
        if abs(spread.random - stands) > ERROR_TOLERANCE * spread.random:
            return f"{file}: spread of {name} is {stands:.4g}; the campaigns give {spread.random:.4g}"
    return ""


def _read(file: Path | Traversable, label: str) -> _File:
    found = read_fit(_File, file, label)
    unknown = sorted(key for key in found.constants if key.split(" ")[0] not in LINK_CONSTANTS)
    if unknown:
        raise SpecError(f"{label}: unknown constant {unknown[0]}; run 'rooflinekit fit' to make the file anew")
    return found
