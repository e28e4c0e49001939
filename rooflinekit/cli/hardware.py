"""The subcommands about specifications: devices, hosts, clusters, those that write them, and the check of them."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import rooflinekit as rk
from rooflinekit.cli.command import Answer, Tables, made, say, typed
from rooflinekit.cli.guide import Command, group
from rooflinekit.cli.options import HOSTS, NONE_OR_MORE, Draft, Force
from rooflinekit.errors import InputError, SpecError, printable
from rooflinekit.files import write_text
from rooflinekit.present import text

if TYPE_CHECKING:
    from rooflinekit.hardware.detection import Found


def _document(record: rk.Device | rk.Host | rk.Cluster, *, empty: bool = False) -> dict[str, Any]:
    """What a file has. empty: with what it leaves open."""
    document: dict[str, Any] = json.loads(record.model_dump_json(by_alias=True, exclude_none=not empty))
    return document


def devices(
    name: Annotated[str | None, typer.Argument(help="one device, to see its numbers, checks and sources")] = None,
    sort: Annotated[str, "the order: name, date, memory, bandwidth, ridge, power, price, per-watt, fp16 …"] = "name",
    reverse: Annotated[bool, "reverse the order"] = False,
    number_format: Annotated[str, "--format", "the number format for ridge, per watt and per dollar"] = "fp16",
    vendor: Annotated[str | None, "only devices of this vendor"] = None,
    architecture: Annotated[str | None, "only devices of this architecture or compute capability"] = None,
    memory_min: Annotated[str | None, "only devices with this much memory or more, '40 GB'"] = None,
    kind: Annotated[str | None, "only devices of this kind: gpu or cpu"] = None,
    attention: Annotated[
        Path | None, "--attention FILE", "for one device: draw the TFLOP/s of its attention kernels into this file"
    ] = None,
    allow_draft: Draft = False,
) -> Tables | None:
    """List the known devices, or describe one.

    Peaks are those without sparsity.
    Example: rooflinekit devices --sort per-watt --memory-min "40 GB"
    """
    from rooflinekit.hardware import catalog, checks

    filters = {"vendor": vendor, "architecture": architecture, "memory_min": memory_min, "kind": kind}

    def document(device: rk.Device) -> dict[str, Any]:
        """The file's content, and under `table` what the table says, in base units."""
        return {**_document(device), "table": catalog.record(catalog.make_row(device, number_format))}

    if name is not None:
        _refuse_beside_name(name, filters, sort != "name" or reverse)
        device = rk.load_device(name, allow_draft=allow_draft)
        if attention is not None:
            rk.plot.save(rk.plot.attention(device)[0], attention, command=typed())
            say(f"figure written to {attention}")
            return None
        row, results = catalog.make_row(device, number_format), checks.run(device)
        return Tables(
            "device",
            lambda: {"device": document(device), "checks": [asdict(one) for one in results]},
            lambda: text.devices.print_device(row, results),
        )
    if attention is not None:
        raise InputError("--attention draws the kernels of one device: name it, such as rooflinekit devices h100-sxm")
    rows = catalog.list_rows(math=number_format, sort=sort, reverse=reverse, **filters)
    return Tables(
        "devices",
        lambda: {"devices": [document(row.device) for row in rows]},
        lambda: text.device_table.print_devices(rows),
    )


def _refuse_beside_name(name: str, filters: dict[str, str | None], ordered: bool) -> None:
    given = [word for word, value in filters.items() if value is not None]
    if given or ordered:
        word = f"--{given[0].replace('_', '-')}" if given else "--sort or --reverse"
        raise InputError(f"{word} belongs to the table of all devices; it was given beside the one device {name!r}")


def hosts(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME|FILE.yaml]", help="one host, to see its times and sources", **HOSTS)
    ] = None,
) -> Tables:
    """List the known hosts, or describe one.

    A host is the CPU that issues work to a GPU; --host names it.
    Example: rooflinekit hosts generic-server
    """
    from rooflinekit.hardware.specs import host_names

    found = [rk.load_host(one) for one in (host_names() if name is None else (name,))]
    return Tables(
        "hosts",
        lambda: {"hosts": [_document(one, empty=True) for one in found]},
        lambda: text.devices.print_hosts(found) if name is None else text.devices.print_host(found[0]),
    )


def clusters(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME|FILE.yaml]", help="one cluster, to see its links and sources")
    ] = None,
) -> Tables:
    """List the known clusters, or describe one.

    A cluster is devices and the links between them. Bandwidths are those of one direction.
    Example: rooflinekit clusters dgx-h100
    """
    if name is None:
        found = rk.clusters()
        return Tables(
            "clusters",
            lambda: {"clusters": [_document(one) for one in found]},
            lambda: text.devices.print_clusters(found),
        )
    one = rk.load_cluster(name)
    return Tables("cluster", lambda: {"cluster": _document(one)}, lambda: text.devices.print_cluster(one))


def check(
    targets: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME|FILE.yaml]...", help="specifications to check; by default all that are shipped"),
    ] = None,
) -> Answer:
    """Check that specifications are well-formed and agree with physics.

    The exit status is 1 where one is not.
    Example: rooflinekit check half.yaml
    """
    from rooflinekit.hardware.specs import audits, report

    results = audits(targets or ())
    return Answer(
        "check",
        lambda: {
            "specifications": [{"name": one.name, "checks": [asdict(check) for check in one.checks]} for one in results]
        },
        lambda: print("\n".join(report(results, every=bool(targets)))),
        failed=any(one.failed for one in results),
    )


specs = group(
    """Write a specification of this machine, or of a GPU nobody sells.

    Example: rooflinekit specs detect --out my-gpu.yaml
    """
)
Out = Annotated[Path | None, "--out -o", "the file to write; by default standard output"]


@specs.command(cls=Command)
@made
def detect(
    out: Out = None,
    cpu: Annotated[bool, "describe the CPU, even where there is a GPU"] = False,
    index: Annotated[int, "which GPU, as PyTorch counts them", NONE_OR_MORE] = 0,
    force: Force = False,
) -> Answer:
    """Draft a specification of this machine's hardware.

    Numbers that the hardware does not report are left empty.
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
    return _written(
        mapping_text(found.mapping, found.comments, heading), out, force, found.unknown, _missing(found, out)
    )


@specs.command(cls=Command)
@made
def new(
    origin: Annotated[str, "--from DEVICE", "the device to start from: a name, an alias or a file"],
    assignments: Annotated[
        list[str] | None, "--set KEY=VALUE", 'a changed number, such as dram.bandwidth="6.7 TB/s"; repeatable'
    ] = None,
    name: Annotated[str | None, "the name of the new device; by default the old one with '-what-if'"] = None,
    out: Out = None,
    force: Force = False,
    allow_draft: Draft = False,
) -> Answer:
    """Change numbers of a GPU, to ask what if.

    Peaks follow SMs and clocks, and bandwidth follows bus width and pin rate.
    Example: rooflinekit specs new --from nvidia-h100-sxm5-80gb --set sm_count=66 --out half.yaml
    """
    from rooflinekit.hardware import checks, what_if, yaml_file

    device = rk.load_device(origin, allow_draft=allow_draft)
    varied = what_if.vary(device, name or f"{device.name}-what-if", assignments or [])
    heading = f"{device.name} with {', '.join(assignments or ['no change'])}. Peaks are dense."
    notes = [
        f"note: {one.name} does not follow from units, clocks and pins; explained as a what-if"
        for one in checks.run(varied)
        if one.status == "explained" and one.name not in device.explained
    ]
    return _written(yaml_file.spec_text(varied, heading), out, force, (), notes)


def _detect_gpu(index: int) -> Found | None:
    """What CUDA or ROCm reports of a GPU; None without torch or without a GPU."""
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


def _missing(found: Found, out: Path | None) -> list[str]:
    lines = [f"left empty, as nothing reports it: {', '.join(found.unknown)}"]
    try:
        known = rk.load_device(str(found.mapping["display_name"]))
    except (LookupError, SpecError):
        return [*lines, f"fill them in, delete draft and draft_reason, then `rooflinekit check {out or 'FILE.yaml'}`"]
    return [*lines, f"a checked specification of it is shipped: {known.name}"]


def _written(content: str, out: Path | None, force: bool, unknown: Sequence[str], notes: Sequence[str]) -> Answer:
    """Writes a specification where a file is named; notes go to standard error beside its text."""
    from rooflinekit.hardware.yaml_file import mapping_of

    if out is not None:
        write_text(content, out, force=force)

    def told() -> None:
        if out is None:
            print(content, end="")
        for line in (*([] if out is None else [f"written to {out}"]), *notes):
            print(printable(line), file=sys.stderr)

    file = None if out is None else str(out)
    return Answer(
        "specs", lambda: {"specification": mapping_of(content), "left_empty": list(unknown), "file": file}, told
    )
