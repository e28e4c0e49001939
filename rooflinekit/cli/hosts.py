"""The subcommand that lists hosts, or shows one."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from rooflinekit.cli.options import JsonOption, host_names, print_json


def hosts(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME|FILE.yaml]", autocompletion=host_names, help="one of them: its times, sources"),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """The hosts that are known, or one of them.

    The CPUs that issue work to a GPU, as --host names them. Example: rooflinekit hosts generic-server
    """
    from rooflinekit.hardware import specs

    found = [specs.load_host(one) for one in (specs.host_names() if name is None else (name,))]
    if as_json:
        print_json("hosts", {"hosts": [json.loads(one.model_dump_json(by_alias=True)) for one in found]})
        return
    from rooflinekit.present.text import devices as host_text

    if name is None:
        host_text.print_hosts(found)
    else:
        host_text.print_host(found[0])
