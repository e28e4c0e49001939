"""The notebooks run from their first cell to their last, and show what running them shows; what they keep is small."""

import re
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")
import nbformat
from make_notebooks import NOTEBOOKS, executed

LARGEST = 200_000  # bytes of a notebook


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):  # else under HOME
            patch.setenv(name, str(tmp_path_factory.mktemp(name)))
        found = executed(NOTEBOOKS, tmp_path_factory.mktemp("work"))
    return dict(zip((file.stem for file in NOTEBOOKS), found, strict=True))


def printed(notebook: Any) -> list[str]:
    """What its cells print, and how many pictures they draw: those may differ from one matplotlib to another."""
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    texts = [output.get("text") or output.get("data", {}).get("text/plain", "") for output in outputs]
    return [re.sub(r"<Figure size .*>", "a figure", text) for text in texts]


@pytest.mark.slow
@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_the_notebook_is_current(file: Path, done: dict[str, Any]) -> None:
    kept = nbformat.read(file, 4)
    nbformat.validate(kept)
    assert printed(done[file.stem]) == printed(kept), f"run {Path(sys.executable).name} docs/make_notebooks.py"


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_what_is_kept_is_small_and_of_nobody(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    assert len(text) < LARGEST
    assert not re.search(r"/home/|/Users/|/tmp/|Traceback", text)


def test_there_are_three() -> None:
    assert [file.stem for file in NOTEBOOKS] == ["buying_a_gpu", "design_review", "paper_figure"]
