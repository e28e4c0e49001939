"""The subcommands about specifications: devices, hosts, clusters, those that write them, and the check of them."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import rooflinekit as rk
from rooflinekit.cli.command import Answer, Tables, made, say, typed
from rooflinekit.cli.guide import Command, group
from rooflinekit.cli.options import HOSTS, NONE_OR_MORE, Drafts, Force
from rooflinekit.errors import InputError, printable
from rooflinekit.files import write_text
from rooflinekit.present import text

if TYPE_CHECKING:
    from rooflinekit.api.specifications import Draft


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
    allow_draft: Drafts = False,
) -> Tables | None:
    """List the known devices, or describe one.

    Peaks are those without sparsity.
    Example: rooflinekit devices --sort per-watt --memory-min "40 GB"
    """
    from rooflinekit.api.specifications import catalog, checks, row_document

    filters = {"vendor": vendor, "architecture": architecture, "memory_min": memory_min, "kind": kind}
    if name is not None:
        given = [f"--{word.replace('_', '-')}" for word, value in filters.items() if value is not None]
        for word in (*given, *(["--sort or --reverse"] if sort != "name" or reverse else ())):
            raise InputError(f"{word} belongs to the table of all devices; it was given beside the one device {name!r}")
        device = rk.load_device(name, allow_draft=allow_draft)
        if attention is not None:
            rk.plot.save(rk.plot.attention(device)[0], attention, command=typed())
            say(f"figure written to {attention}")
            return None
        row, results = catalog.make_row(device, number_format), checks.run(device)
        return Tables(
            "device",
            lambda: {"device": row_document(row), "checks": [asdict(one) for one in results]},
            lambda: text.devices.print_device(row, results),
        )
    if attention is not None:
        raise InputError("--attention draws the kernels of one device: name it, such as rooflinekit devices h100-sxm")
    rows = catalog.list_rows(math=number_format, sort=sort, reverse=reverse, **filters)
    return Tables(
        "devices",
        lambda: {"devices": [row_document(row) for row in rows]},
        lambda: text.device_table.print_devices(rows),
    )


def hosts(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME|FILE.yaml]", help="one host, to see its times and sources", **HOSTS)
    ] = None,
) -> Tables:
    """List the known hosts, or describe one.

    A host is the CPU that issues work to a GPU; --host names it.
    Example: rooflinekit hosts generic-server
    """
    from rooflinekit.api.specifications import document, host_names

    found = [rk.load_host(one) for one in (host_names() if name is None else (name,))]
    return Tables(
        "hosts",
        lambda: {"hosts": [document(one, empty=True) for one in found]},
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
    from rooflinekit.api.specifications import document

    if name is None:
        found = rk.clusters()
        return Tables(
            "clusters",
            lambda: {"clusters": [document(one) for one in found]},
            lambda: text.devices.print_clusters(found),
        )
    one = rk.load_cluster(name)
    return Tables("cluster", lambda: {"cluster": document(one)}, lambda: text.devices.print_cluster(one))


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
    from rooflinekit.api.specifications import audits, report

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
    from rooflinekit.api.specifications import detected

    return _written(detected(index, cpu=cpu, file=str(out or "FILE.yaml")), out, force)


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
    allow_draft: Drafts = False,
) -> Answer:
    """Change numbers of a GPU, to ask what if.

    Peaks follow SMs and clocks, and bandwidth follows bus width and pin rate.
    Example: rooflinekit specs new --from nvidia-h100-sxm5-80gb --set sm_count=66 --out half.yaml
    """
    from rooflinekit.api.specifications import varied

    device = rk.load_device(origin, allow_draft=allow_draft)
    return _written(varied(device, assignments or [], name), out, force)


def _written(draft: Draft, out: Path | None, force: bool) -> Answer:
    """Writes a specification where a file is named; notes go to standard error beside its text."""
    if out is not None:
        write_text(draft.text, out, force=force)

    def told() -> None:
        if out is None:
            print(draft.text, end="")
        for line in (*([] if out is None else [f"written to {out}"]), *draft.notes):
            print(printable(line), file=sys.stderr)

    return Answer("specs", lambda: draft.to_dict(out), told)
