"""Imports point down: the picture in docs/architecture.md, held against the code."""

import ast
import functools
import sys
from pathlib import Path

import rooflinekit

PACKAGE = Path(rooflinekit.__file__).parent

# A part imports only from rows above its own; parts of one row do not know each other.
ROWS = [
    {"errors"},
    {"units", "files"},
    {"published"},
    {"ir"},
    {"tracing", "cost", "hardware"},
    {"kernels"},
    {"timing"},
    {"decoder"},
    {"calibrate", "step"},
    {"serving"},
    {"distributed"},
    {"study", "present"},  # empty but for a docstring
    {"study/errors"},
    {"study/explain", "study/profile", "study/sweep"},
    {"study/compare", "study/transfer", "study/guard"},
    {"present/text", "present/figures", "present/traces"},
    {"present/page"},
    {"api"},
    {"cli"},
]
OUTSIDE = {
    "errors": set(),
    "units": set(),
    "files": set(),
    "published": {"huggingface_hub"},  # to look into its cache, when it is asked for
    "ir": {"sympy", "numpy", "pandas"},  # pandas for Graph.to_dataframe, when it is called
    "tracing": {"torch", "sympy", "numpy", "torchvision"},  # torchvision to see whether it can be imported
    "cost": {"sympy"},
    "hardware": {"yaml", "pydantic", "pydantic_core", "pandas"},  # pandas for devices(), when it is called
    "kernels": {"numpy"},
    "timing": {"numpy"},
    "decoder": {"sympy"},
    "calibrate": {"numpy", "scipy", "yaml", "pydantic", "pandas", "ijson"},  # and in some files torch, see TIMING
    "step": {"pandas", "numpy"},
    "serving": set(),
    "distributed": {"pandas"},  # for the table of what fits, when it is asked for
    "study": set(),
    "present": set(),
    "study/errors": set(),
    "study/explain": set(),
    "study/profile": {"numpy", "pandas", "pydantic"},
    "study/sweep": {"numpy", "scipy", "sympy", "pandas", "pyarrow"},
    "study/compare": {"scipy", "sympy", "pandas"},
    "study/transfer": {"numpy", "scipy", "pandas"},
    "study/guard": {"pydantic"},
    "present/text": {"rich", "pandas"},
    "present/figures": {"matplotlib", "numpy", "pandas"},
    "present/traces": set(),
    "present/page": {"jinja2"},
    "api": {"pandas", "pytest"},  # pytest in the plug-in of it
    "cli": {"typer", "torch"},  # torch for the names of its optimizers and losses, in cli/parse.py alone
}
#: Files that name each other, each group with its reason in docs/architecture.md.
CIRCLES = [
    {
        "step.prediction",
        "step.report",
        "step.chains",
        "step.variants",
        "step.capacity",
    },
    {"decoder.decoder", "decoder.inference", "decoder.layers"},
]
#: What runs ops on hardware; all else in `calibrate` works without torch.
TIMING = {
    f"calibrate/{name}.py": {"torch"}
    for name in (
        "bench/microbench", "bench/timers", "bench/collective_worker", "hosts/bench",
        "local_hardware/cpu", "local_hardware/model_run",
    )
}  # fmt: skip
FILES = [f for f in PACKAGE.rglob("*.py") if f.name not in ("__main__.py",) and f != PACKAGE / "__init__.py"]


def part_of(file: Path) -> str:
    return room(file.relative_to(PACKAGE).with_suffix("").parts)


def room(parts: tuple[str, ...]) -> str:
    """The part that a module lies in: a folder, and of the large folders a folder within."""
    large = parts[0] in ("study", "present") and parts[1:] not in ((), ("__init__",))
    return "/".join(parts[: 1 + large])


@functools.cache
def imports(file: Path, *, running: bool = False) -> frozenset[str]:
    """running: without those that are for type checkers alone."""
    found = set()
    tree = ast.parse(file.read_text(encoding="utf-8"))
    if running:
        tree.body = [
            node for node in tree.body if not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test))
        ]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{file}: relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(found)


def test_imports_point_down() -> None:
    wrong = {}
    for file in FILES:
        part = part_of(file)
        row = next(i for i, names in enumerate(ROWS) if part in names)
        allowed = {part, "__version__"}.union(*ROWS[:row])  # the version is of the package's own door
        ours = {room(tuple(name.split(".")[1:])) for name in imports(file) if name.startswith("rooflinekit.")}
        wrong[str(file.relative_to(PACKAGE))] = ours - allowed
    assert {file: names for file, names in wrong.items() if names} == {}


def test_commands_ask_walks_and_show_answers() -> None:
    """When they run: what only annotations name is loaded by nobody."""
    allowed = {"api", "cli", "errors", "units", "files", "present", "__version__"}
    found = {
        file.name: {_part(name) for name in imports(file, running=True)} for file in (PACKAGE / "cli").glob("*.py")
    }
    assert {file: names - allowed for file, names in found.items() if names - allowed} == {}


def _part(name: str) -> str:
    """The part of the package that a name lies in; "api" for a name of the package's own door, and for others."""
    own, _, rest = name.partition(".")
    return rest.partition(".")[0] if own == "rooflinekit" and rest else "api"


def test_outside_imports_are_the_listed_ones() -> None:
    wrong = {}
    for file in FILES:
        name = str(file.relative_to(PACKAGE))
        outside = {one.split(".")[0] for one in imports(file)} - set(sys.stdlib_module_names) - {"rooflinekit"}
        wrong[name] = outside - OUTSIDE[part_of(file)] - TIMING.get(name, set())
    assert {file: names for file, names in wrong.items() if names} == {}


def test_every_part_has_a_row() -> None:
    assert {part_of(file) for file in FILES} == set().union(*ROWS) == set(OUTSIDE)


def test_files_in_a_circle_are_the_ones_with_a_reason() -> None:
    names = {".".join(file.relative_to(PACKAGE).with_suffix("").parts): file for file in FILES}
    edges = {
        name: {one.removeprefix("rooflinekit.") for one in _modules(file)} & (names.keys() - {name})
        for name, file in names.items()
    }
    reach = {name: _reached(name, edges) for name in names}
    found = {frozenset(other for other in reach[name] if name in reach[other]) for name in names if name in reach[name]}
    assert found == set(map(frozenset, CIRCLES))
    page = (PACKAGE.parent / "docs" / "architecture.md").read_text(encoding="utf-8")
    silent = {name for name in set().union(*CIRCLES) if f"`{name.replace('.', '/')}`" not in page}
    assert not silent, "docs/architecture.md gives no reason for the circle"


def _modules(file: Path) -> frozenset[str]:
    """What a file imports, the modules of `from module import name` among them."""
    return imports(file) | {name.rpartition(".")[0] for name in imports(file)}


def _reached(start: str, edges: dict[str, set[str]]) -> set[str]:
    found: set[str] = set()
    todo = list(edges[start])
    while todo:
        name = todo.pop()
        if name not in found:
            found.add(name)
            todo += edges[name]
    return found


def test_no_file_stands_loose() -> None:
    loose = {path.name for path in PACKAGE.iterdir() if path.is_file()}
    assert loose == {"__init__.py", "__main__.py", "errors.py", "units.py", "files.py", "py.typed"}
