"""Subcommands about hardware: devices, check, specs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rooflinekit.cli_options import JsonOption, print_json
from rooflinekit.errors import InputError, SpecError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rooflinekit.hardware.catalog import Row
    from rooflinekit.hardware.checks import Check
    from rooflinekit.hardware.detection import Found
    from rooflinekit.hardware.device import Device

DraftOption = Annotated[bool, typer.Option("--allow-draft", help="take a draft, whose numbers are not confirmed")]

specs_app = typer.Typer(rich_markup_mode=None, invoke_without_command=True)


def register(app: typer.Typer) -> None:
    """Adds the subcommands to the program's."""
    app.command()(devices)
    app.command()(check)
    app.add_typer(specs_app, name="specs")


def devices(
    name: Annotated[str | None, typer.Argument(help="one device: its numbers, checks and sources")] = None,
    sort: Annotated[
        str, typer.Option(help="name, date, memory, bandwidth, ridge, power, price, per-watt, fp16 …")
    ] = "name",
    reverse: Annotated[bool, typer.Option("--reverse", help="the other way round")] = False,
    number_format: Annotated[str, typer.Option("--format", help="of ridge, per watt and per dollar")] = "fp16",
    vendor: Annotated[str | None, typer.Option(help="only of this vendor")] = None,
    architecture: Annotated[str | None, typer.Option(help="only of this architecture or compute capability")] = None,
    memory_min: Annotated[str | None, typer.Option(help="only with this much memory, '40 GB'")] = None,
    kind: Annotated[str | None, typer.Option(help="only gpu, or only cpu")] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="print a Markdown table")] = False,
    allow_draft: DraftOption = False,
    as_json: JsonOption = False,
) -> None:
    """The devices that are known, or one of them.

    Peaks are dense; ridge, per watt and per dollar are for --format. Example: rooflinekit devices --sort per-watt
    --memory-min "40 GB"
    """
    if markdown and as_json:
        raise InputError("--markdown and --json: choose one")
    filters = {"vendor": vendor, "architecture": architecture, "memory_min": memory_min, "kind": kind}
    if name is not None:
        _refuse_beside_name(name, filters, sort != "name" or reverse or markdown)
        from rooflinekit.hardware import specs

        _show_device(specs.load_device(name, allow_draft=allow_draft), as_json, number_format)
        return
    from rooflinekit.hardware import catalog

    rows = catalog.list_rows(math=number_format, sort=sort, reverse=reverse, **filters)
    if as_json:
        print_json([_document(row.device, number_format) for row in rows])
    else:
        _show_table(rows, markdown)


def check(
    targets: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME|FILE.yaml]...", help="by default all that are shipped")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Whether specifications are well-formed and agree with physics; exit status 1 where one does not.

    Example: rooflinekit check my-gpu.yaml
    """
    from rooflinekit.hardware import audit

    results = audit.run(targets or ())
    if as_json:
        print_json([{"name": one.name, "checks": [_record(found) for found in one.checks]} for one in results])
    else:
        print("\n".join(audit.report(results, every=bool(targets))))
    if any(one.failed for one in results):
        raise typer.Exit(1)


@specs_app.callback()
def explain_specs(context: typer.Context) -> None:
    """Write a specification: of the hardware at hand, or of a GPU that nobody sells.

    Example: rooflinekit specs detect --out my-gpu.yaml
    """
    if context.invoked_subcommand is None:
        print(context.get_help())


@specs_app.command()
def detect(
    out: Annotated[Path | None, typer.Option("--out", "-o", help="file to write; by default standard output")] = None,
    cpu: Annotated[bool, typer.Option("--cpu", help="the CPU, also where there is a GPU")] = False,
    index: Annotated[int, typer.Option(min=0, help="which GPU, as PyTorch counts them")] = 0,
    force: Annotated[bool, typer.Option("--force", help="replace the file")] = False,
) -> None:
    """A draft specification of the hardware at hand: what it reports, the rest left empty.

    Example: rooflinekit specs detect --out my-gpu.yaml
    """
    from rooflinekit.hardware import cpu_detection

    found = None if cpu else _detect_gpu(index)
    if found is None:
        if index and not cpu:
            raise InputError(f"--index {index}: PyTorch sees no GPU on this machine")
        found = cpu_detection.describe_cpu()
    from rooflinekit.hardware import spec_text

    shown = found.mapping["display_name"] or "unnamed hardware"
    heading = f"{shown}, as it reports itself. What is empty is not reported."
    _write(spec_text.mapping_text(found.mapping, found.comments, heading), out, force)
    _say_what_is_missing(found, out)


@specs_app.command()
def new(
    origin: Annotated[str, typer.Option("--from", metavar="DEVICE", help="name, alias or file to start from")],
    assignments: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help='dram.bandwidth="6.7 TB/s"; repeatable')
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="of the new device; by default that of the old with '-what-if'")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="file to write; by default standard output")] = None,
    force: Annotated[bool, typer.Option("--force", help="replace the file")] = False,
    allow_draft: DraftOption = False,
) -> None:
    """A what-if GPU: another one with numbers changed. Peaks follow SMs and clocks, bandwidth follows bus and pins.

    Example: rooflinekit specs new --from nvidia-h100-sxm5-80gb --set sm_count=66 --out half.yaml
    """
    from rooflinekit.hardware import checks, spec_text, specs, what_if

    device = specs.load_device(origin, allow_draft=allow_draft)
    varied = what_if.vary(device, name or f"{device.name}-what-if", assignments or [])
    heading = f"{device.name} with {', '.join(assignments or ['no change'])}. Peaks are dense."
    _write(spec_text.device_text(varied, heading), out, force)
    for one in checks.run(varied):
        if one.status == "explained" and one.name not in device.explained:
            print(
                f"note: {one.name} does not follow from units, clocks and pins; explained as a what-if", file=sys.stderr
            )


def _refuse_beside_name(name: str, filters: dict[str, str | None], ordered: bool) -> None:
    given = [word for word, value in filters.items() if value is not None]
    if given or ordered:
        word = f"--{given[0].replace('_', '-')}" if given else "--sort, --reverse or --markdown"
        raise InputError(f"{word} belongs to the table of all devices; it was given beside the one device {name!r}")


def _show_table(rows: Sequence[Row], markdown: bool) -> None:
    from rooflinekit.present import device_table

    if markdown:
        print("\n".join(device_table.markdown_lines(rows)))
    elif rows:
        device_table.print_devices(rows)
    else:
        print("no device passes all filters")


def _show_device(device: Device, as_json: bool, math: str) -> None:
    from rooflinekit.hardware import catalog, checks

    row, results = catalog.make_row(device, math), checks.run(device)
    if as_json:
        print_json({**_document(device, math), "checks": [_record(one) for one in results]})
        return
    from rooflinekit.present import device_text

    device_text.print_device(row, results)


def _document(device: Device, math: str) -> dict[str, Any]:
    """The file's content, and under `table` what the table says, in base units."""
    from rooflinekit.hardware import catalog

    document: dict[str, Any] = json.loads(device.model_dump_json(by_alias=True, exclude_none=True))
    return {**document, "table": catalog.record(catalog.make_row(device, math))}


def _record(one: Check) -> dict[str, Any]:
    return {field: getattr(one, field) for field in ("name", "expected", "actual", "unit", "status", "note")}


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
        print(f"fill them in, delete draft and draft_reason, then `rooflinekit check {file}`", file=sys.stderr)
    else:
        print(f"a checked specification of it is shipped: {known.name}", file=sys.stderr)


def _write(content: str, out: Path | None, force: bool) -> None:
    if out is None:
        print(content, end="")
        return
    from rooflinekit.files import write_text

    write_text(content, out, force=force)
    print(f"written to {out}", file=sys.stderr)
