"""A device that nobody sells, described as the changes to one that is: `--set dram.bandwidth="6.7 TB/s"`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import date
from typing import Any, get_args

from pydantic import ValidationError

from rooflinekit.errors import InputError, nearest
from rooflinekit.hardware import checks
from rooflinekit.hardware.device import Device
from rooflinekit.hardware.fields import Record
from rooflinekit.hardware.yaml_file import one_line

# What people say for a key of the file.
_SYNONYMS = {"memory": "dram", "sms": "sm_count", "power": "board_power", "l2": "l2_capacity"}
_TABLES = ("matrix_peak", "matrix_peak_fp16_accumulate", "vector_peak")
# Facts of the product, which do not hold for a variation of it.
_DROPPED = {"aliases": (), "launch_date": None, "launch_price_usd": None, "confidence": None, "display_name": None}


def vary(device: Device, name: str, assignments: Sequence[str]) -> Device:
    """The device under a new name with `KEY=VALUE` changed, and what follows from it by the rules of `Device.replace`.

    Peaks that are set stay as set, while the others follow units and clocks. A check that the result fails is explained
    as a what-if, for that is what was asked for. Raises InputError for a key or value that a specification cannot have.
    """
    fields: dict[str, Any] = {}
    tables: dict[str, dict[str, Any]] = {}
    for text in assignments:
        key, equals, value = text.partition("=")
        path = _path(key.strip())
        if not equals or not value.strip():
            raise InputError(f'--set {text!r}: expected KEY=VALUE, such as dram.bandwidth="6.7 TB/s" or sm_count=66')
        if path[0] in _TABLES and len(path) == 2:
            tables.setdefault(path[0], {})[path[1]] = value.strip()
        else:
            _put(fields, device, path, value.strip(), key)
    label = "--name"
    try:
        device.replace(name=name)
        label = "--set"
        varied = device.replace(**{**_DROPPED, **fields, "name": name})
        varied = varied.replace(**{table: {**getattr(varied, table), **peaks} for table, peaks in tables.items()})
    except ValidationError as error:
        raise InputError(one_line(error, Device, label)) from error
    return _explained(varied, device, assignments)


def _path(key: str) -> list[str]:
    first, *rest = key.split(".")
    path = [_SYNONYMS.get(first, first), *rest]
    known = list(Device.model_fields)
    if path[0] not in known:
        near = nearest(path[0], [*known, *_SYNONYMS])
        raise InputError(f"--set {key}: unknown key{near}; the keys are those of the files in gpu_specs/")
    if len(path) > 2 or "" in path:
        raise InputError(f"--set {key}: expected a key such as sm_count or dram.bandwidth")
    if path[0] in ("name", "schema_version", "explained", "draft", "draft_reason"):
        raise InputError(f"--set {key}: cannot be set{'; the name is that of --name' if key == 'name' else ''}")
    return path


def _put(fields: dict[str, Any], device: Device, path: list[str], text: str, key: str) -> None:
    """Puts the value under its key, inside a nested record where the key is one of its own."""
    record: type[Record] = Device
    target = fields
    if len(path) == 2:
        now = getattr(device, path[0])
        if not isinstance(now, Record):
            raise InputError(f"--set {key}: {path[0]} of {device.name} holds no {path[1]}")
        record, target = type(now), fields.setdefault(path[0], {})
    elif isinstance(getattr(device, path[0]), Record | Mapping):
        now = getattr(device, path[0])
        example = next(iter(now), "fp16") if isinstance(now, Mapping) else next(iter(type(now).model_fields))
        raise InputError(f"--set {key}: expected a key inside {path[0]}, such as {path[0]}.{example}")
    target[path[-1]] = _value(record, path[-1], text)


def _value(record: type[Record], key: str, text: str) -> Any:
    """The text, as the whole number or list that the field holds where it holds one."""
    field = record.model_fields.get(key)
    kinds = _kinds(field.annotation) if field is not None else set()
    if int in kinds and text.lstrip("+-").isdigit():
        return int(text)
    if tuple in kinds:
        return tuple(part.strip() for part in text.split(","))
    if date in kinds:
        with suppress(ValueError):
            return date.fromisoformat(text)
    return text


def _kinds(annotation: Any) -> set[Any]:
    inner = [_kinds(part) for part in get_args(annotation)]
    origin = getattr(annotation, "__origin__", annotation)
    return {origin, annotation}.union(*inner)


def _explained(varied: Device, original: Device, assignments: Sequence[str]) -> Device:
    changes = ", ".join(assignments) or "no change"
    failing = [check.name for check in checks.run(varied) if not check.ok]
    reason = f"a what-if, {original.name} with {changes}"
    notes = f"What-if of {original.name}: {changes}. {original.notes or ''}".strip()
    names = {check.name for check in checks.run(varied.replace(explained={}))}
    kept = {name: why for name, why in original.explained.items() if name in names}
    return varied.replace(explained={**kept, **dict.fromkeys(failing, reason)}, notes=notes)
