"""What people write for a model, and the target that it stands for: the answer to a name that is no target."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from rooflinekit.errors import TargetError, nearest

_WEIGHTS = (".pt", ".pth", ".ckpt", ".bin", ".safetensors", ".onnx", ".gguf", ".h5")


def what_to_write(text: str, library: Callable[[str], Any]) -> str:
    """The target that `text` means, in a sentence for an error; empty where nothing tells.

    In turn: a file of weights, a Python file, a model of timm or torchvision by its letters, a family of transformers.
    library: imports a package by its name; TargetError where it is not installed.

    >>> import importlib
    >>> what_to_write("net.safetensors", importlib.import_module)
    'weights are not read; name the Python that builds the model, such as net.py:Net'
    """
    path = Path(text)
    if path.suffix in _WEIGHTS:
        return f"weights are not read; name the Python that builds the model, such as {path.stem}.py:Net"
    if path.suffix == ".py":
        names = _factories(path)
        return f"write {text}:Name, of a class or a function without arguments in it" + (
            f": {', '.join(names)}" if names else ""
        )
    return _of_libraries(text.rpartition("/")[2], library)


def _factories(path: Path) -> list[str]:
    """The classes of a file, or its functions where it has none; without running it."""
    try:
        body = ast.parse(path.read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return []
    classes = [node.name for node in body if isinstance(node, ast.ClassDef)]
    return classes or [node.name for node in body if isinstance(node, ast.FunctionDef)]


def _of_libraries(name: str, library: Callable[[str], Any]) -> str:
    try:
        packages = {"timm": library("timm"), "torchvision": library("torchvision.models")}
        families = library("transformers.models.auto.modeling_auto").MODEL_MAPPING_NAMES
    except TargetError:
        return ""
    models = [f"{source}:{model}" for source, package in packages.items() for model in package.list_models()]
    for source in packages:
        if found := _same_letters(f"{source}:{name}", models):
            return f"write {found}"
    if family := _same_letters(name.partition("-")[0], families):
        classes = families[family]
        return f"write transformers:{classes if isinstance(classes, str) else classes[0]}"
    return nearest(f"timm:{name}", models, likeness=0.85).removeprefix("; ")


def _same_letters(name: str, known: Iterable[str]) -> str | None:
    return next((model for model in known if _letters(model) == _letters(name)), None)


def _letters(name: str) -> str:
    return "".join(filter(str.isalnum, name)).lower()
