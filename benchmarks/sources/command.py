"""What benchmarks ask for on the command line."""

from __future__ import annotations

import argparse
import logging
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def asked(
    description: str | None, *, silent: int = logging.WARNING, **options: Mapping[str, Any]
) -> argparse.Namespace:
    """The folder of measurements, and further options, each with argparse's own keywords.

    From here on nothing is said beside what a benchmark prints: silent is the highest level of logging that is not.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    for name, keywords in options.items():
        parser.add_argument(f"--{name}", **keywords)
    found = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.disable(silent)
    return found
