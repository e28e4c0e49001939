"""Language models by name: those that are built in, those in HuggingFace's cache on this machine, and files."""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from rooflinekit.errors import RooflinekitError, nearest, printable
from rooflinekit.files import read_json

#: What follows a model's name where it has been trained further: its dimensions are the same.
_VARIANTS = re.compile(r"-(instruct|chat|it|base|hf|pt)$")


def published_names() -> tuple[str, ...]:
    """The names of the models whose dimensions are built in.

    >>> "llama-3.1-70b" in published_names()
    True
    """
    return tuple(_all())


def published(name: str) -> tuple[str, Mapping[str, Any]] | None:
    """The built-in model that a name means, and its config.json; None where it means none.

    Case, the owner and the kind of further training do not count, nor do hyphens.

    >>> published("meta-llama/Llama-3.1-70B-Instruct")[0]
    'llama-3.1-70b'
    """
    found = _by_letters().get(_letters(name))
    return None if found is None else (found, _all()[found])


def language_model(target: str) -> str | None:
    """What `config_of` takes, where a target names a language model; None for another target.

    >>> language_model("transformers:qwen2.5-7b"), language_model("timm:resnet50")
    ('qwen2.5-7b', None)
    """
    name = target.removeprefix("transformers:")
    return name if name.startswith("hf:") or published(name) else None


def config_of(source: str | Path, error: type[RooflinekitError]) -> tuple[str, Mapping[str, Any]]:
    """A model's name and its config.json: a file or its folder, `hf:owner/name` of HuggingFace's cache, or a built-in
    name.

    A file goes before a name. What a generation_config.json beside the file says is under "_generation". Raises
    `error` for what is none of them, and for a file that holds no object.
    """
    text = str(source)
    path = _cached(text.removeprefix("hf:"), error) if text.startswith("hf:") else Path(source)
    if os.path.isfile(path / "config.json"):
        path = path / "config.json"
    there = os.path.exists(path)  # unlike Path.exists, False for a name that no file can have
    known = None if there else published(text)
    if known is not None:
        return known
    if not there and path.suffix != ".json":
        near = nearest(text.rpartition("/")[2], published_names())
        raise error(
            f"{printable(text)}: no such file, and no language model is built in by this name{near}; hf:owner/name "
            "takes one that HuggingFace's cache has on this machine"
        )
    config, beside = _object(path, error), path.with_name("generation_config.json")
    if path.name == "config.json" and beside.exists():
        config = {**config, "_generation": _object(beside, error)}
    name = text.rpartition("/")[2] if text.startswith("hf:") else path.stem
    return printable(name if name != "config" else path.resolve().parent.name), config


def _object(path: Path, error: type[RooflinekitError]) -> Mapping[str, Any]:
    found = read_json(path, error)
    if not isinstance(found, Mapping):
        raise error(f"{path}: expected a {path.name} of a language model: an object; got {type(found).__name__}")
    return found


def _cached(name: str, error: type[RooflinekitError]) -> Path:
    try:
        from huggingface_hub import try_to_load_from_cache
        from huggingface_hub.errors import HFValidationError
    except ImportError as reason:
        raise error(f"hf:{printable(name)}: needs huggingface_hub, which comes with transformers ({reason})") from None
    try:
        found = try_to_load_from_cache(name, "config.json")
    except HFValidationError as reason:
        raise error(f"hf:{printable(name)}: {reason}") from None
    if not isinstance(found, str):
        raise error(
            f"hf:{printable(name)}: HuggingFace's cache on this machine has no config.json of it; "
            f"`hf download {printable(name)} config.json` puts it there"
        )
    return Path(found)


@functools.cache
def _all() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = json.loads((files("rooflinekit.published") / "models.json").read_text("utf-8"))
    return found


@functools.cache
def _by_letters() -> dict[str, str]:
    return {_letters(name): name for name in _all()}


def _letters(name: str) -> str:
    plain = _VARIANTS.sub("", name.rpartition("/")[2].lower())
    return re.sub(r"[-_ ]", "", plain.removeprefix("meta-"))
