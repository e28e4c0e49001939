"""The subcommand that checks specifications."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from rooflinekit.cli.options import JsonOption, print_json

if TYPE_CHECKING:
    from rooflinekit.hardware.checks import Check


def check(
    targets: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME|FILE.yaml]...", help="by default all that are shipped")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Whether specifications are well-formed and agree with physics.

    Exit status 1 where one is not.
    Example: rooflinekit check half.yaml
    """
    from rooflinekit.hardware.specs import audits, report

    results = audits(targets or ())
    if as_json:
        documents = [{"name": one.name, "checks": [record(found) for found in one.checks]} for one in results]
        print_json("check", {"specifications": documents})
    else:
        print("\n".join(report(results, every=bool(targets))))
    if any(one.failed for one in results):
        raise typer.Exit(1)


def record(one: Check) -> dict[str, Any]:
    """A check as JSON has it."""
    return {field: getattr(one, field) for field in ("name", "expected", "actual", "unit", "status", "note")}
