"""The subcommands that write specifications: specs detect, specs new."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rooflinekit.cli.guide import Command, group
from rooflinekit.cli.options import DraftOption, ForceOption, JsonOption, print_json
from rooflinekit.errors import InputError, SpecError, printable

if TYPE_CHECKING:
    from rooflinekit.hardware.detection import Found

specs = group(
    """Write a specification: of this hardware, or of a what-if.

    Of the hardware at hand, or of a GPU that nobody sells.
    Example: rooflinekit specs detect --out my-gpu.yaml
    """
)


@specs.command(cls=Command)
def detect(
    out: Annotated[Path | None, typer.Option("--out", "-o", help="file to write; by default standard output")] = None,
    cpu: Annotated[bool, typer.Option("--cpu", help="the CPU, also where there is a GPU")] = False,
    index: Annotated[int, typer.Option(min=0, help="which GPU, as PyTorch counts them")] = 0,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """A draft specification of the hardware at hand: what it reports, the rest left empty.

    Example: rooflinekit specs detect --out my-gpu.yaml
    """
    from rooflinekit.hardware import detection
    from rooflinekit.hardware.yaml_file import mapping_text

    found = None if cpu else _detect_gpu(index)
    if found is None:
        if index and not cpu:
            raise InputError(f"--index {index}: PyTorch sees no GPU on this machine")
        found = detection.describe_cpu()

    shown = found.mapping["display_name"] or "unnamed hardware"
    heading = f"{shown}, as it reports itself. What is empty is not reported."
    text = mapping_text(found.mapping, found.comments, heading)
    if as_json:
        _print_document(text, out, force, found.unknown)
        return
    _write(text, out, force)
    _say_what_is_missing(found, out)


@specs.command(cls=Command)
def new(
    origin: Annotated[str, typer.Option("--from", metavar="DEVICE", help="name, alias or file to start from")],
    assignments: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help='dram.bandwidth="6.7 TB/s"; repeatable')
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="of the new device; by default that of the old with '-what-if'")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="file to write; by default standard output")] = None,
    force: ForceOption = False,
    allow_draft: DraftOption = False,
    as_json: JsonOption = False,
) -> None:
    """A what-if GPU: another one with numbers changed. Peaks follow SMs and clocks, bandwidth follows bus and pins.

    Example: rooflinekit specs new --from nvidia-h100-sxm5-80gb --set sm_count=66 --out half.yaml
    """
    from rooflinekit.hardware import checks, specs, what_if, yaml_file

    device = specs.load_device(origin, allow_draft=allow_draft)
    varied = what_if.vary(device, name or f"{device.name}-what-if", assignments or [])
    heading = f"{device.name} with {', '.join(assignments or ['no change'])}. Peaks are dense."
    text = yaml_file.spec_text(varied, heading)
    if as_json:
        _print_document(text, out, force)
        return
    _write(text, out, force)
    for one in checks.run(varied):
        if one.status == "explained" and one.name not in device.explained:
            print(
                f"note: {one.name} does not follow from units, clocks and pins; explained as a what-if", file=sys.stderr
            )


def _detect_gpu(index: int) -> Found | None:
    """What CUDA or ROCm reports of a GPU; None without torch or without a GPU."""
    from importlib import import_module

    from rooflinekit.hardware import detection

    try:
        torch = import_module("torch")
    except ImportError:
        return None
    if not torch.cuda.is_available():
        return None
    if index >= torch.cuda.device_count():
        raise InputError(f"--index {index}: PyTorch sees {torch.cuda.device_count()} GPUs, counted from 0")
    properties = torch.cuda.get_device_properties(index)
    nvml: dict[str, float] = {}
    try:
        module = import_module("pynvml")
    except ImportError:
        print("note: pynvml is not installed: power and PCIe stay empty", file=sys.stderr)
    else:
        nvml = detection.read_nvml(module, index, detection.bus_id(properties))
    return detection.describe_gpu(properties, nvml, hip=bool(torch.version.hip))


def _say_what_is_missing(found: Found, out: Path | None) -> None:
    print(f"left empty, as nothing reports it: {', '.join(found.unknown)}", file=sys.stderr)
    from rooflinekit.hardware import specs

    try:
        known = specs.load_device(str(found.mapping["display_name"]))
    except (LookupError, SpecError):
        file = out or "FILE.yaml"
        print(
            printable(f"fill them in, delete draft and draft_reason, then `rooflinekit check {file}`"), file=sys.stderr
        )
    else:
        print(printable(f"a checked specification of it is shipped: {known.name}"), file=sys.stderr)


def _print_document(content: str, out: Path | None, force: bool, unknown: Sequence[str] = ()) -> None:
    """The specification as its file has it, for a program."""
    from rooflinekit.files import write_text
    from rooflinekit.hardware.yaml_file import mapping_of

    if out is not None:
        write_text(content, out, force=force)
    print_json("specs", {
        "specification": mapping_of(content), "left_empty": list(unknown), "file": None if out is None else str(out),
    })  # fmt: skip


def _write(content: str, out: Path | None, force: bool) -> None:
    if out is None:
        print(content, end="")
        return
    from rooflinekit.files import write_text

    write_text(content, out, force=force)
    print(printable(f"written to {out}"), file=sys.stderr)
