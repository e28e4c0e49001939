"""Runs the Python blocks of README.md and docs/, so that they stay true."""

from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser

pytest_collect_file = Sybil(
    parsers=[PythonCodeBlockParser()],
    patterns=["README.md", "docs/*.md", "docs/tutorials/*.md"],
).pytest()
