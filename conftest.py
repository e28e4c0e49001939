"""Runs the Python blocks of README.md and docs/, so that they stay true; tests/test_tutorials.py those of tutorials."""

import gc
import os
import sys

import pytest
from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser

# Two processes on two cores: a library's own threads would spend their time waiting for each other.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

# Collection loads thousands of modules and frees next to nothing of them: looking for garbage took a third of its time.
gc.disable()

pytest_collect_file = Sybil(
    parsers=[PythonCodeBlockParser()],
    patterns=["README.md", "docs/*.md"],
).pytest()

#: A tenth of the files, and more than half of the time.
LONG = (
    "tests/cli", "tests/test_pages.py", "tests/test_real_networks.py", "tests/test_tutorials.py",
    "tests/test_notebooks.py", "tests/study/sweep", "tests/present/figures", "tests/calibrate", "tests/test_plugins.py",
    "tests/test_gloo_torchrun.py",
)  # fmt: skip


def pytest_addoption(parser: pytest.Parser) -> None:
    """--slow."""
    parser.addoption("--slow", action="store_true", help="also run tests that take more than a few seconds")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skips slow tests without it, and puts the files that take longest first: no process then waits for another's."""
    items.sort(key=lambda item: not str(item.path.relative_to(config.rootpath)).startswith(LONG))
    for item in items:
        if "slow" in item.keywords:
            item.add_marker(pytest.mark.timeout(3600))
            if not config.getoption("--slow"):
                item.add_marker(pytest.mark.skip(reason="takes more than a few seconds; run with --slow"))


def pytest_collection_finish() -> None:
    """Looks for garbage from here on, but not among what collection has loaded, and seldom."""
    gc.freeze()
    gc.set_threshold(5_000, 10, 10)  # networks hang in circles, with their weights
    gc.enable()


def pytest_runtest_teardown() -> None:
    """Lets go of figures: pyplot keeps them, and warns of many, whichever tests have drawn them."""
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")
