"""Reads one YAML file into plain Python values, strictly.

Plain PyYAML keeps the last of two equal keys, expands aliases without limit and recurses as deep as the file nests.
A specification needs none of that, so each is an error that names the file and the line.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError

from rooflinekit.errors import SpecError, nearest, printable
from rooflinekit.hardware.cluster import Cluster
from rooflinekit.hardware.device import Device
from rooflinekit.hardware.host import Host

Model = TypeVar("Model", bound=BaseModel)

MAX_BYTES = 2**20
_MAX_DEPTH = 16  # a specification nests three levels
_MAX_VALUES = 20_000  # keys and values of one file; each takes half a kilobyte once it is read
_MAX_PLAIN = 64  # letters of a number or date: YAML has numbers that take minutes to work out

# libyaml reads ten times faster than the Python parser; some platforms come without it.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_mapping(source: Path | Traversable, label: str) -> dict[str, Any]:
    """The mapping that the file holds; `label` is how messages call the file.

    Raises SpecError when it is missing, no regular file, larger than 1 MiB, not UTF-8, not YAML, not a mapping, or uses
    a key twice, an anchor, an alias or a language tag.
    """
    text = _text(source, label)
    try:
        _refuse_references(text, label)
        node = yaml.compose(text, Loader=_LOADER)
        value = None if node is None else _value(node, label)
    except yaml.MarkedYAMLError as error:
        problem = " ".join(filter(None, (error.context, error.problem)))
        raise SpecError(f"{label}:{_line(error.problem_mark)} not valid YAML: {printable(problem)}") from error
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        # Errors without a mark come from text that looks like a date or number and is none.
        if isinstance(error, SpecError):
            raise
        raise SpecError(f"{label}: not valid YAML: {printable(' '.join(str(error).split()))}") from error
    if value is None:
        raise SpecError(f"{label}: the file is empty; expected a YAML mapping that begins with 'schema: 1'")
    if not isinstance(value, dict):
        kind = "a list" if isinstance(value, list) else f"the single value {value!r:.40}"
        raise SpecError(f"{label}: expected a mapping of keys to values; got {kind}")
    return value


def read_record(kind: type[Model], source: Path | Traversable, label: str) -> Model:
    """The file as a record of pydantic's. Raises SpecError as `read_mapping` does, and with what does not fit."""
    return record_of(kind, read_mapping(source, label), label)


def record_of(kind: type[Model], mapping: Mapping[str, Any], label: str, context: Any = None) -> Model:
    """The mapping as a record of pydantic's. Raises SpecError with what does not fit."""
    try:
        return kind.model_validate(mapping, context=context)
    except ValidationError as error:
        raise SpecError(one_line(error, kind, label)) from error


def _text(source: Path | Traversable, label: str) -> str:
    try:
        if source.is_dir():
            raise SpecError(f"{label}: is a directory; expected a YAML file")
        if not source.is_file():
            there = isinstance(source, Path) and os.path.lexists(source)
            what = "is no regular file, or a link that leads to none; expected a YAML file" if there else "no such file"
            raise SpecError(f"{label}: {what}")
        with source.open("rb") as stream:
            content = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise SpecError(f"{label}: cannot be read: {error.strerror or error}") from error
    if len(content) > MAX_BYTES:
        raise SpecError(f"{label}: is larger than 1 MiB; expected a YAML file of a few KiB")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SpecError(f"{label}: not UTF-8 text: {error.reason} at byte {error.start}") from error


def _refuse_references(text: str, label: str) -> None:
    """Raise SpecError for anchors, aliases, tags and masses of values, before anything is built from them."""
    depth = 0
    event: Any
    for count, event in enumerate(yaml.parse(text, Loader=_LOADER)):
        if count > _MAX_VALUES:
            raise SpecError(
                f"{label}: holds more than {_MAX_VALUES} values; expected a specification of about a hundred"
            )
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > _MAX_DEPTH:
                raise SpecError(f"{label}:{_line(event.start_mark)} nests deeper than {_MAX_DEPTH} levels")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if getattr(event, "tag", None) is not None:
            raise SpecError(f"{label}:{_line(event.start_mark)} YAML tag {printable(event.tag)} is not allowed")
        if getattr(event, "anchor", None) is not None:
            word = "alias *" if isinstance(event, yaml.AliasEvent) else "anchor &"
            raise SpecError(
                f"{label}:{_line(event.start_mark)} YAML {word}{event.anchor} is not allowed; write the value out"
            )


def _value(node: yaml.Node, label: str) -> Any:
    if isinstance(node, yaml.MappingNode):
        return _mapping(node, label)
    if isinstance(node, yaml.SequenceNode):
        return [_value(item, label) for item in node.value]
    if node.tag == "tag:yaml.org,2002:str":
        return node.value
    if len(node.value) > _MAX_PLAIN:
        raise SpecError(f"{label}:{_line(node.start_mark)} expected a number of at most {_MAX_PLAIN} digits")
    return yaml.constructor.SafeConstructor().construct_object(node)


def _mapping(node: yaml.MappingNode, label: str) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key_node, value_node in node.value:
        key = _value(key_node, label)
        line = _line(key_node.start_mark)
        if not isinstance(key, str):
            raise SpecError(f"{label}:{line} expected text as key; got {key!r:.40}")
        if key in result:
            raise SpecError(f"{label}:{line} key {key!r} is written twice")
        result[key] = _value(value_node, label)
    return result


def _line(mark: Any) -> str:
    return "" if mark is None else f" line {mark.line + 1}:"


# Turns what pydantic found wrong with a file into one line: file, key path, what was expected, what came.


_EXPECTED = {
    "int_type": "a whole number without a unit",
    "float_type": "a number",
    "string_type": "text",
    "date_type": "a date, such as 2024-11-18",
    "dict_type": "a mapping of keys to values",
    "model_type": "a mapping of keys to values",
    "model_attributes_type": "a mapping of keys to values",
    "tuple_type": "a list",
    "string_too_short": "some text",
    "string_pattern_mismatch": "lower-case words joined by hyphens, such as 'nvidia-l4'",
}


def one_line(error: ValidationError, model: type, label: str) -> str:
    """The first problem in words (unknown keys first: a missing one is often misspelt), and how many more there are."""
    problems = error.errors(include_url=False)
    first = min(problems, key=lambda problem: problem["type"] not in ("extra_forbidden", "unexpected_keyword_argument"))
    path = [str(part) for part in first["loc"] if part != "[key]"]
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return printable(": ".join([label, *path, _words(first, model)]) + more)


def _words(problem: Any, model: type) -> str:
    kind, given = problem["type"], problem["input"]
    if kind == "extra_forbidden":
        return f"unknown key{nearest(str(problem['loc'][-1]), _keys(model, problem['loc'][:-1]), 1)}"
    if kind == "unexpected_keyword_argument":  # the same of a dataclass
        keys = [field.name for field in fields(model)] if is_dataclass(model) and len(problem["loc"]) == 1 else []
        return f"unknown key{'; the keys are ' * bool(keys)}{', '.join(keys)}"
    if kind == "missing":
        return "the key is missing"
    if kind in ("value_error", "assertion_error"):
        return str(problem["ctx"]["error"])
    if kind in ("greater_than_equal", "greater_than", "less_than_equal"):
        bounds = {"ge": "of at least", "gt": "above", "le": "of at most"}
        limit = next(f"{words} {problem['ctx'][key]}" for key, words in bounds.items() if key in problem["ctx"])
        return f"expected a number {limit}; got {given!r}"
    if kind in _EXPECTED:
        quotes = " in quotes" if kind == "string_type" and isinstance(given, bool | int | float) else ""
        return f"expected {_EXPECTED[kind]}{quotes}; got {_short(given)}"
    message: str = problem["msg"]
    return f"{message[0].lower()}{message[1:]}; got {_short(given)}"


def _keys(model: type[BaseModel], path: tuple[Any, ...]) -> list[str]:
    """The keys that the mapping at `path` may hold."""
    for part in path:
        field = model.model_fields.get(str(part))
        candidates = (field.annotation, *get_args(field.annotation)) if field else ()
        inner = [kind for kind in candidates if isinstance(kind, type) and issubclass(kind, BaseModel)]
        if not inner:
            return []
        model = inner[0]
    return [field.alias or name for name, field in model.model_fields.items()]


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


# Specifications as YAML text.


_WIDTH = 118


def spec_text(record: Device | Host | Cluster, heading: str) -> str:
    """The YAML of a specification, `heading` above it; a host states all its times, the others no defaults."""
    stated = isinstance(record, Host)
    mapping = record.model_dump(mode="json", by_alias=True, exclude_none=not stated, exclude_defaults=not stated)
    if isinstance(record, Device) and record.launch_date is not None:
        mapping["launch_date"] = record.launch_date
    return mapping_text({"schema": record.schema_version, **mapping}, {}, heading)


def mapping_of(text: str) -> dict[str, Any]:
    """The content of a YAML text, its dates as text."""
    found: dict[str, Any] = json.loads(json.dumps(yaml.safe_load(text), default=str))
    return found


def mapping_text(mapping: Mapping[str, Any], comments: Mapping[str, str], heading: str) -> str:
    """The YAML of nested mappings, with a comment beside each dotted key of `comments`; None is an empty value."""
    return "\n".join([f"# {heading}", *_lines(mapping, comments, "")]) + "\n"


def _lines(mapping: Mapping[str, Any], comments: Mapping[str, str], prefix: str) -> list[str]:
    found: list[str] = []
    for key, value in mapping.items():
        path = f"{prefix}{key}"
        comment = f"  # {comments[path]}" if path in comments else ""
        if value is None or isinstance(value, Mapping):
            found.append(f"{key}:{comment}")
            found += [f"  {line}" for line in _lines(value or {}, comments, f"{path}.")]
        elif isinstance(value, list | tuple):
            flow = yaml.safe_dump(list(value), width=math.inf, allow_unicode=True, default_flow_style=True)
            found.append(f"{key}: {flow.strip()}{comment}")
        else:
            leaf = yaml.safe_dump({key: value}, width=_WIDTH, allow_unicode=True).splitlines()
            # A comment can stand behind a value of one line alone.
            found += [leaf[0] + comment] if len(leaf) == 1 else leaf
    return found
