"""Writes what the commands of README.md, index.md, start.md and serving.md print under them; tests hold it."""

from __future__ import annotations

import re
from pathlib import Path

from page import printed

from rooflinekit.files import write_text

ROOT = Path(__file__).parent.parent
PAGES = (ROOT / "README.md", *(ROOT / "docs" / f"{name}.md" for name in ("index", "start", "serving")))
_SHOWN = re.compile(r"(```console\n\$ (rooflinekit [^\n]*)\n).*?```", re.DOTALL)


if __name__ == "__main__":
    for page in PAGES:
        shown = _SHOWN.sub(lambda found: f"{found[1]}{printed(found[2])}\n```", page.read_text(encoding="utf-8"))
        write_text(shown, page)
