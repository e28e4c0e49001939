"""What the documentation site adds to the pages while it is built: notebooks as pages, the gallery, what nobody listed.

mkdocs.yml names this file. The pages themselves stay readable where they lie.
"""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import rooflinekit as rk

DOCS = Path(__file__).parent
#: Pages whose figures the gallery shows, and a figure with the last block of code before it.
SHOWN = ("figures.md", "many_gpus.md", "tutorials/*.md")
#: Letters of a line of code that fit beside the menu on 1280 pixels.
WIDE = 120
_ANSWER = re.compile(r"^```(.*)\n(?:(?!^```)[\s\S])*^```$|(?:^    .+\n)+", re.MULTILINE)  # notebooks indent theirs
_CELLS = re.compile(" {3}|─{3}|[|]")
_COMMAND = re.compile(r"^(?:\$ )?(?:rooflinekit|python -m) .*$", re.MULTILINE)
_BLOCK_OR_FIGURE = re.compile(r"```(sh|console|python)\n(.*?)```|!\[([^]]+)\]\(([^)]+)\)", re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Each notebook as a page with its outputs; the notebook itself stays beside it, to be downloaded."""
    from nbconvert import MarkdownExporter
    from traitlets.config import Config

    shown = Config(NbConvertBase={"display_data_priority": ["image/svg+xml", "text/html", "text/plain"]})  # no LaTeX
    for notebook in sorted((DOCS / "notebooks").glob("*.ipynb")):
        exporter = MarkdownExporter(config=shown)
        text, found = exporter.from_filename(str(notebook), {"output_files_dir": f"{notebook.stem}_files"})
        text = text.rstrip() + f"\n\n[Download this notebook]({notebook.name})\n"
        files.append(File.generated(config, f"notebooks/{notebook.stem}.md", content=text))
        for name, picture in found["outputs"].items():
            files.append(File.generated(config, f"notebooks/{name}", content=picture))
    return files


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Pages that mkdocs.yml does not list stand at the end of those that it does."""
    listed = (DOCS.parent / "mkdocs.yml").read_text(encoding="utf-8")
    more = [file.name for file in sorted(DOCS.glob("*.md")) if not re.search(rf"\b{file.name}$", listed, re.MULTILINE)]
    config.nav = [*(config.nav or ()), *([{"More": more}] if more else [])]
    return config


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """The gallery's figures, and public names that no page of the reference has."""
    if page.file.src_uri == "reference/index.md" and (names := missing()):
        markdown += "\n".join(["", "## More", "", *(f"::: rooflinekit.{name}\n" for name in names)])
    markdown = markdown.replace("<!-- gallery -->", gallery()) if page.file.src_uri == "gallery.md" else markdown
    return _ANSWER.sub(wrapped, _COMMAND.sub(lambda found: folded(found[0]), markdown))


def wrapped(answer: re.Match[str]) -> str:
    """What a program printed, its sentences in lines that a page is wide enough for; tables stay as they are."""
    if answer[1] not in (None, "console", "text"):
        return answer[0]
    lines = answer[0].split("\n")
    for number, line in enumerate(lines):
        if len(line) > WIDE and not _CELLS.search(line.strip()) and not line.endswith("\\"):
            indent = line[: len(line) - len(line.lstrip())]
            lines[number] = textwrap.fill(line, WIDE, subsequent_indent=indent, break_on_hyphens=False)
    return "\n".join(lines)


def folded(command: str) -> str:
    """A command in lines that a page is wide enough for, to be copied as it stands; it is cut before options.

    >>> print(folded("rooflinekit plot " + "--with timm:resnet50 " * 6).replace("\\\\", "/"))
    rooflinekit plot --with timm:resnet50 --with timm:resnet50 --with timm:resnet50 --with timm:resnet50 /
        --with timm:resnet50 --with timm:resnet50
    """
    lines: list[str] = []
    for part in re.split(r" (?=-)", command.rstrip()):
        if lines and len(lines[-1]) + len(part) + 3 <= WIDE:
            lines[-1] += f" {part}"
        else:
            lines.append(f"    {part}" if lines else part)
    return " \\\n".join(lines)


def missing() -> list[str]:
    """Public names that stand on no page of the reference."""
    pages = "\n".join(file.read_text(encoding="utf-8") for file in (DOCS / "reference").glob("*.md"))
    return [name for name in rk.__all__ if not re.search(rf"^::: rooflinekit\.{name}$", pages, re.MULTILINE)]


def gallery() -> str:
    """Every figure with its title, a link to the page that explains it, and the code that draws it.

    >>> gallery().count("{ loading=lazy }") >= 15
    True
    """
    cards = [card for pattern in SHOWN for file in sorted(DOCS.glob(pattern)) for card in _cards(file)]
    return '<div class="gallery" markdown>\n\n' + "\n\n".join(cards) + "\n\n</div>"


def _cards(file: Path) -> list[str]:
    page, text = file.relative_to(DOCS), file.read_text(encoding="utf-8")
    heading, cards, code = text.partition("\n")[0].removeprefix("# "), [], ("", "")
    for kind, block, title, figure in _BLOCK_OR_FIGURE.findall(text):
        if kind:
            code = (kind, block)
            continue
        shown = "\n".join(f"    {line}".rstrip() for line in f"```{code[0]}\n{code[1]}```".splitlines())
        cards.append(
            f'<div class="card" markdown>\n\n[![{title}]({page.parent / figure}){{ loading=lazy }}]({page})\n\n'
            f'**{title}** ([{heading}]({page}))\n\n??? example "code"\n\n{shown}\n\n</div>'
        )
    return cards


def on_post_build(config: MkDocsConfig) -> None:
    """Without the page that a server would show for others: its addresses begin at the root."""
    (Path(config.site_dir) / "404.html").unlink()
