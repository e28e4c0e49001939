"""Runs the notebooks of docs/notebooks and keeps what they print and draw: python docs/make_notebooks.py

One kernel runs them all, each in a namespace of its own, as most of a kernel's time goes into importing torch.
tests/test_notebooks.py holds what is kept against the same.
"""

from __future__ import annotations

from pathlib import Path

import nbformat
from nbclient import NotebookClient
from page import FOLDER

from rooflinekit.files import write_text

NOTEBOOKS = sorted((FOLDER / "notebooks").glob("*.ipynb"))
#: Before each: nothing of the one before is left, and figures are drawn with text as text, the same bytes each time.
_BEGIN = f"%reset -f\nimport os, sys\nsys.path.insert(0, {str(FOLDER.parent)!r})\nos.environ['ROOFLINEKIT_CACHE_DIR'] = ''\n%matplotlib inline\n" + (
    "%config InlineBackend.figure_formats = ['svg']\n"
    "%config InlineBackend.print_figure_kwargs = {'metadata': {'Date': None}}\n"
    "import matplotlib; matplotlib.rcParams.update({'svg.fonttype': 'none', 'svg.hashsalt': 'rooflinekit'})"
)


def executed(files: list[Path], folder: Path) -> list[nbformat.NotebookNode]:
    """The notebooks as they are after running, each from its first cell to its last, in a folder.

    Raises nbclient's CellExecutionError for a cell that fails.
    """
    notebooks = [nbformat.read(file, 4) for file in files]
    clients = [NotebookClient(one, timeout=120, resources={"metadata": {"path": str(folder)}}) for one in notebooks]
    first, *_ = clients
    with first.setup_kernel():
        for client in clients:
            client.km, client.kc = first.km, first.kc
            begin = nbformat.v4.new_code_cell(_BEGIN)
            client.nb.cells.insert(0, begin)
            for index, cell in enumerate(client.nb.cells):
                client.execute_cell(cell, index, execution_count=index)
                cell.metadata.pop("execution", None)  # when it ran
            client.nb.cells.remove(begin)
    return notebooks


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        for file, notebook in zip(NOTEBOOKS, executed(NOTEBOOKS, Path(folder)), strict=True):
            write_text(nbformat.writes(notebook) + "\n", file)
            print(file.name)
