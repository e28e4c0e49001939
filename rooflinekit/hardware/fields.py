"""Building blocks of the specification records: quantities with units, read-only mappings, the strict base record."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ValidationInfo,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from rooflinekit.errors import UnitError, nearest
from rooflinekit.units import expectation, format_quantity, parse_quantity

# What `model_validate` is told when the values come from a file, where a bare number is not a quantity.
FROM_FILE = {"from_file": True}

# Beyond these a number is a slip, and its products would leave the range of floats.
_SMALLEST, _LARGEST = 1e-15, 1e24

K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Quantity:
    """Marks a float field as a quantity: `Annotated[float, Quantity("byte/s")]`.

    A file must write it as text with a unit. Python code may also give a number in base units.
    """

    unit: str
    zero: bool = False  # whether nothing at all is a sensible value
    low: float = _SMALLEST  # bounds of what exists, or might in twenty years
    high: float = _LARGEST

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """The pydantic schema: text or number in, float out, text in JSON."""
        return core_schema.with_info_plain_validator_function(
            self._read,
            serialization=core_schema.plain_serializer_function_ser_schema(
                partial(write_quantity, unit=self.unit), when_used="json"
            ),
        )

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """The JSON schema of a file: text, a number and its unit."""
        return {"type": "string", "pattern": r"^\s*[0-9.]", "description": f"a number with its unit, {self.unit}"}

    def _read(self, value: object, info: ValidationInfo) -> float:
        if isinstance(value, str):
            number = parse_quantity(value, self.unit)
        elif info.context == FROM_FILE or isinstance(value, bool) or not isinstance(value, int | float):
            raise UnitError(expectation(self.unit, value))
        else:
            number = float(value)
        if not math.isfinite(number) or number < 0 or (number == 0 and not self.zero):
            raise UnitError(expectation(self.unit, value) + ", which is not positive and finite")
        if number != 0 and not self.low <= number <= self.high:
            bounds = " to ".join(format_quantity(bound, self.unit) for bound in (self.low, self.high))
            known = "" if (self.low, self.high) == (_SMALLEST, _LARGEST) else f": it is {bounds}"
            raise UnitError(expectation(self.unit, value) + f", which no hardware has{known}")
        return number


def write_quantity(value: float, unit: str) -> str:
    """The quantity as specifications write it, to every digit: "80 GiB" and "5120 bit", not "85.9 GB" and "5.12 kbit".

    >>> write_quantity(80 * 2**30, "byte"), write_quantity(5120, "bit"), write_quantity(192e9, "byte")
    ('80 GiB', '5120 bit', '192 GB')
    """
    if unit == "bit" and value % 1 == 0:
        return f"{value:.0f} bit"
    decimal = format_quantity(value, unit, digits=None)
    if unit != "byte":
        return decimal
    return min(decimal, format_quantity(value, unit, digits=None, binary=True), key=len)


@dataclass(frozen=True, slots=True)
class Choice:
    """Marks a text field as one word out of a closed list."""

    words: tuple[str, ...]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """The pydantic schema: one of the words in, a plain string out."""
        return core_schema.no_info_plain_validator_function(self._read)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """The JSON schema of a file: one of the words."""
        return {"enum": list(self.words)}

    def _read(self, value: object) -> str:
        if not isinstance(value, str) or value not in self.words:
            near = nearest(value, self.words, 1) if isinstance(value, str) else ""
            raise ValueError(f"expected one of {', '.join(self.words)}; got {value!r}{near}")
        return str(value)


class FrozenMapping(Mapping[K, V]):
    """A mapping that cannot be changed, and that can be hashed and pickled (`MappingProxyType` cannot).

    >>> peaks = FrozenMapping({"fp16": 312e12})
    >>> peaks["fp16"], peaks.get("fp8"), peaks == {"fp16": 312e12}
    (312000000000000.0, None, True)
    """

    __slots__ = ("_items",)

    def __init__(self, items: Mapping[K, V] | None = None) -> None:
        self._items = dict(items or {})

    def __getitem__(self, key: K) -> V:
        return self._items[key]

    def __iter__(self) -> Iterator[K]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:
        return hash(frozenset(self._items.items()))

    def __repr__(self) -> str:
        return repr(self._items)


class Frozen:
    """Marks a mapping field: `Annotated[Mapping[str, float], Frozen()]` takes any mapping and keeps a FrozenMapping."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """The pydantic schema: any mapping in, keys and values checked, a FrozenMapping out; a dict is written."""
        return core_schema.no_info_after_validator_function(
            FrozenMapping,
            handler(source),
            serialization=core_schema.wrap_serializer_function_ser_schema(
                lambda mapping, write: write(dict(mapping)), schema=handler(source)
            ),
        )


class Record(BaseModel):
    """Base of the specification records: frozen, exact types, no unknown fields."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", populate_by_name=True)

    def replace(self, **changes: Any) -> Self:
        """A copy with some fields changed, validated anew. Raises pydantic's ValidationError, a ValueError."""
        fields = {name: getattr(self, name) for name in type(self).model_fields}
        return type(self).model_validate({**fields, **changes})


# YAML has lists and no tuples; everything else stays strict.
def _readable(text: str, what: str = "letters") -> str:
    if not (text if what != "letters" else text.replace("\n", "")).isprintable():
        raise ValueError(f"expected {what} that can be printed; got {text!r:.60}")
    return text


#: Lines, and a line that stands in tables and messages. Neither holds letters that a terminal would act upon.
Text = Annotated[str, Field(min_length=1, max_length=20_000), AfterValidator(_readable)]
Line = Annotated[
    str, Field(min_length=1, max_length=200), AfterValidator(partial(_readable, what="one line of letters"))
]
Lines = Annotated[tuple[Line, ...], Field(strict=False, max_length=100)]
Count = Annotated[int, Field(ge=1, le=10**9)]
