"""Imports point down: the picture in docs/architecture.md, held against the code."""

import ast
import sys
from pathlib import Path

import pytest

import rooflinekit

PACKAGE = Path(rooflinekit.__file__).parent

# A part imports only from rows above its own; parts of one row do not know each other.
ROWS = [
    {"errors"},
    {"units", "files", "notebook"},
    {"ir"},
    {"tracing", "cost", "hardware"},
    {"model"},
    {"calibrate", "step"},
    {"strategies"},
    {"study", "serving"},
    {"present"},
    {"workflows", "calibration_workflows", "collective_workflows"},
    {"sweep_places"},
    {"measurement", "reporting", "sweep_workflows", "serving_workflows", "parallel_workflows"},
    {"cli_parse", "cli_options"},
    {"cli_workload", "cli_devices", "cli_fit", "cli_calibrate", "cli_campaign", "cli_clusters"},
    {"cli_python"},
    {
        "cli_measure",
        "cli_compare",
        "cli_advise",
        "cli_crossover",
        "cli_profile",
        "cli_explain",
        "cli_sweep",
        "cli_report",
        "cli_plot",
        "cli_serve",
        "cli_parallel",
    },
    {"cli_search"},
    {"cli"},
]
OUTSIDE = {
    "errors": set(),
    "units": set(),
    "files": set(),
    "notebook": set(),
    "ir": {"sympy", "numpy", "pandas"},  # pandas for Graph.to_dataframe, when it is called
    "tracing": {"torch", "sympy", "numpy", "torchvision"},  # torchvision to see whether it can be imported
    "cost": {"sympy"},
    "hardware": {"yaml", "pydantic", "pydantic_core", "pandas"},  # pandas for devices(), when it is called
    "model": {"numpy", "sympy"},
    "calibrate": {"numpy", "scipy", "yaml", "pydantic", "pandas"},  # and in some files torch, see TIMING
    "step": {"pandas", "numpy"},
    "study": {"numpy", "scipy", "sympy", "pandas", "pydantic", "ijson", "pyarrow"},
    "present": {"rich", "matplotlib", "numpy", "pandas", "jinja2"},
    "serving": {"sympy"},
    "strategies": {"pandas"},  # for the table of what fits, when it is asked for
    "parallel_workflows": set(),
    "measurement": set(),
    "sweep_places": set(),
    "sweep_workflows": {"pandas"},
    "serving_workflows": set(),
    "reporting": set(),
    "calibration_workflows": set(),
    "collective_workflows": set(),
    "workflows": set(),
    "cli_parse": {"torch"},  # for the names of its optimizers and losses
    "cli_options": {"typer"},
    "cli_workload": {"typer"},
    "cli_devices": {"typer"},
    "cli_fit": {"typer"},
    "cli_calibrate": {"typer"},
    "cli_campaign": {"typer"},
    "cli_clusters": {"typer"},
    "cli_measure": {"typer"},
    "cli_compare": {"typer"},
    "cli_explain": {"typer"},
    "cli_advise": {"typer"},
    "cli_crossover": {"typer"},
    "cli_parallel": {"typer"},
    "cli_profile": {"typer"},
    "cli_sweep": {"typer"},
    "cli_search": {"typer"},
    "cli_python": set(),
    "cli_report": {"typer"},
    "cli_plot": {"typer"},
    "cli_serve": {"typer"},
    "cli": {"typer"},
}
#: What runs ops on hardware; all else in `calibrate` works without torch.
TIMING = {
    f"calibrate/{name}.py": {"torch"}
    for name in (
        "microbench", "timers", "model_step", "model_run", "op_times", "host_bench", "collective_worker", "environment"
    )
}  # fmt: skip
FILES = [f for f in PACKAGE.rglob("*.py") if f.name not in ("__main__.py",) and f != PACKAGE / "__init__.py"]


def part_of(file: Path) -> str:
    first = file.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py")


def imports(file: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{file}: relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_imports_point_down(file: Path) -> None:
    part = part_of(file)
    row = next(i for i, names in enumerate(ROWS) if part in names)
    allowed = {part}.union(*ROWS[:row])
    ours = {name.split(".")[1] for name in imports(file) if name.startswith("rooflinekit.")}
    assert not (wrong := ours - allowed), f"{part} imports {', '.join(sorted(wrong))}"


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_outside_imports_are_the_listed_ones(file: Path) -> None:
    outside = {name.split(".")[0] for name in imports(file)} - set(sys.stdlib_module_names) - {"rooflinekit"}
    allowed = OUTSIDE[part_of(file)] | TIMING.get(str(file.relative_to(PACKAGE)), set())
    assert not (wrong := outside - allowed), f"{part_of(file)} imports {', '.join(sorted(wrong))}"


def test_every_part_has_a_row() -> None:
    assert {part_of(file) for file in FILES} == set().union(*ROWS) == set(OUTSIDE)
