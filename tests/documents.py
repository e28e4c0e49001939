"""Documents of `--json`, held against their published schemas."""

import json
from pathlib import Path
from typing import Any

import pytest

SCHEMAS = Path(__file__).parents[1] / "docs" / "schemas"


def schema(name: str) -> Any:
    return json.loads((SCHEMAS / f"{name}.json").read_text(encoding="utf-8"))


def checked(name: str, text: str) -> Any:
    """What was printed as a document of this name; fails where it is none."""
    jsonschema = pytest.importorskip("jsonschema")
    document = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    assert next(iter(document)) == "schema"
    jsonschema.Draft202012Validator(schema(name)).validate(document)
    return document
