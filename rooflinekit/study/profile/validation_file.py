"""A measured step beside its prediction, as a JSON file: data that the time model can be held against."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from rooflinekit.errors import CampaignError
from rooflinekit.files import read_json, write_text
from rooflinekit.study.profile.validation import Validation

_KIND = "rooflinekit validation"
_SCHEMA = 1


def write_validation(validation: Validation, file: Path, *, force: bool = False) -> None:
    """Writes beside, then renames. Raises OutputError for a file that cannot be written, or exists without `force`."""
    document = {"kind": _KIND, "schema": _SCHEMA, **document_of(validation)}
    write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", file, force=force)


def document_of(validation: Validation) -> dict[str, Any]:
    """Its fields for JSON, without the prediction's kernels."""
    return _adapter().dump_python(validation, mode="json")  # type: ignore[no-any-return]


def read_validation(file: Path) -> Validation:
    """What was written. Raises CampaignError with the field that is wrong for another file."""
    document = read_json(file, CampaignError)
    if not isinstance(document, dict) or document.pop("kind", None) != _KIND:
        raise CampaignError(f"{file}: expected a file that `rooflinekit measure --out` has written; it is none")
    schema = document.pop("schema", None)
    if schema != _SCHEMA:
        raise CampaignError(f"{file}: schema: expected {_SCHEMA}; got {schema!r:.60}")
    try:
        return _adapter().validate_json(json.dumps(document), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        raise CampaignError(f"{file}: {': '.join(map(str, first['loc']))}: {first['msg']}") from error


@lru_cache(maxsize=1)
def _adapter() -> TypeAdapter[Validation]:
    return TypeAdapter(Validation)
