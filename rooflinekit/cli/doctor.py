"""The subcommand that says what this installation can do."""

from __future__ import annotations

from dataclasses import asdict

from rooflinekit.cli.options import JsonOption, print_json


def doctor(as_json: JsonOption = False) -> None:
    """What this installation can do, and what to install.

    Example: rooflinekit doctor --json
    """
    from rooflinekit.api.doctor import diagnose

    found = diagnose()
    if as_json:
        print_json("doctor", {"findings": [asdict(one) for one in found]})
        return
    for one in found:
        print(f"{one.what:<13}{one.found}{f'  (to do: {one.to_do})' if one.to_do else ''}")
