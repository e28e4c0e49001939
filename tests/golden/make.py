"""Makes the golden files anew: what the package predicts today, which `test_golden.py` then holds it to.

    python tests/golden/make.py [SECTION ...]

Without names all sections. Every intended change of a number is a commit of its own: it holds the changed code and the
changed golden files, and its message says which numbers moved, by how much, and why they are better so. A commit that
changes no number on purpose leaves these files alone.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from golden import campaigns, others, steps
from golden.record import Records, text_of

from rooflinekit.errors import RooflinekitError

FOLDER = Path(__file__).parent
Case = tuple[str, Callable[[], Mapping[str, Any]]]


def _step(step: steps.Step) -> Mapping[str, Any]:
    return steps.recorded(steps.predicted(step))


def _steps(*, slow: bool) -> Iterator[Case]:
    for step in steps.steps():
        if ((step.network, step.traced) in steps.SLOW) is slow:
            yield step.name, partial(_step, step)


def _others(section: str, cases: Callable[[], Iterator[Case]], *, slow: bool) -> Iterator[Case]:
    return (case for case in cases() if (case[0] in others.SLOW.get(section, ())) is slow)


_OTHERS = {
    "sweeps": others.sweeps, "parallel": others.parallels, "training": others.trainings, "serving": others.servings,
}  # fmt: skip

#: Each is a file; those with "slow" in their names are looked at with --slow alone.
SECTIONS: Mapping[str, Callable[[], Iterable[Case]]] = {
    f"{name}{'_slow' if slow else ''}": partial(cases, slow=slow)
    for slow in (False, True)
    for name, cases in {
        "steps": _steps,
        **{name: partial(_others, name, cases) for name, cases in _OTHERS.items()},
        "campaigns": campaigns.residuals,
    }.items()
    if not slow or name not in _OTHERS or name in others.SLOW
}


def file_of(section: str) -> Path:
    """Where a section lies."""
    return FOLDER / f"{section}.json"


def stored(section: str) -> Records:
    """What a section was when it was made."""
    found: Records = json.loads(file_of(section).read_text(encoding="utf-8"))
    return found


def made(section: str) -> Records:
    """What a section is now; an error that the package raises is a result like any other."""
    found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, record in SECTIONS[section]():
            try:
                found[name] = record()
            except RooflinekitError as error:
                found[name] = {"error": type(error).__name__}
    return found


def main(names: list[str]) -> None:
    """Writes the sections of these names."""
    for section in names or SECTIONS:
        file_of(section).write_text(text_of(made(section)), encoding="utf-8")
        print(f"{file_of(section).name}: {file_of(section).stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main(sys.argv[1:])
