"""The subcommand that lists devices, or shows one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rooflinekit.cli.check import record
from rooflinekit.cli.options import DraftOption, JsonOption, print_json, typed
from rooflinekit.errors import InputError, printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rooflinekit.hardware.catalog import Row
    from rooflinekit.hardware.device import Device


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
    attention: Annotated[
        Path | None, typer.Option(metavar="FILE", help="of one device: draws TFLOP/s of its kernels of attention")
    ] = None,
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

        device = specs.load_device(name, allow_draft=allow_draft)
        if attention is None:
            _show_device(device, as_json, number_format)
        else:
            _draw_attention(device, attention)
        return
    if attention is not None:
        raise InputError("--attention draws the kernels of one device: name it, such as rooflinekit devices h100-sxm")
    from rooflinekit.hardware import catalog

    rows = catalog.list_rows(math=number_format, sort=sort, reverse=reverse, **filters)
    if as_json:
        print_json("devices", {"devices": [_document(row.device, number_format) for row in rows]})
    else:
        _show_table(rows, markdown)


def _draw_attention(device: Device, out: Path) -> None:
    from rooflinekit.present.figures import plot

    plot.save(plot.attention(device)[0], out, command=typed())
    print(printable(f"figure written to {out}"))


def _refuse_beside_name(name: str, filters: dict[str, str | None], ordered: bool) -> None:
    given = [word for word, value in filters.items() if value is not None]
    if given or ordered:
        word = f"--{given[0].replace('_', '-')}" if given else "--sort, --reverse or --markdown"
        raise InputError(f"{word} belongs to the table of all devices; it was given beside the one device {name!r}")


def _show_table(rows: Sequence[Row], markdown: bool) -> None:
    from rooflinekit.present.text import device_table

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
        print_json("device", {"device": _document(device, math), "checks": [record(one) for one in results]})
        return
    from rooflinekit.present.text import devices as device_text

    device_text.print_device(row, results)


def _document(device: Device, math: str) -> dict[str, Any]:
    """The file's content, and under `table` what the table says, in base units."""
    from rooflinekit.hardware import catalog

    document: dict[str, Any] = json.loads(device.model_dump_json(by_alias=True, exclude_none=True))
    return {**document, "table": catalog.record(catalog.make_row(device, math))}
