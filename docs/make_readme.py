"""Writes what the commands of README.md and serving.md print under them; tests hold it."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from rooflinekit.files import write_text

ROOT = Path(__file__).parent.parent
_SHOWN = re.compile(r"(```console\n\$ (rooflinekit [^\n]*)\n).*?```", re.DOTALL)


def printed(command: str) -> str:
    """What a command prints where no terminal is."""
    words = [sys.executable, "-m", *shlex.split(command)]
    plain = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "TERM")}
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, env=plain, check=True)
    return "\n".join(line.rstrip() for line in done.stdout.strip("\n").splitlines() if line.strip())


if __name__ == "__main__":
    for page in (ROOT / "README.md", ROOT / "docs" / "serving.md"):
        shown = _SHOWN.sub(lambda found: f"{found[1]}{printed(found[2])}\n```", page.read_text(encoding="utf-8"))
        write_text(shown, page)
