"""What is no finite number, or no whole one, is refused by the name of the argument, whatever its type."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

import rooflinekit as rk
from rooflinekit.errors import InputError

WRONG = ["x", math.nan, math.inf, -1, [], object(), 10**400, True]

#: Who takes an argument → its names, and what else has to be given.
TAKEN: list[tuple[Callable[..., Any], tuple[str, ...], dict[str, Any]]] = [
    (rk.Engine, ("layer_s", "request_s", "input_s", "token_s", "request_work_s", "host_more_s"), {}),
    (rk.Engine, ("host_sequence_s", "host_token_s", "memory_share", "wait_steps", "step_tokens", "sequences"), {}),
    (rk.Speculation, ("tokens", "acceptance"), {"tokens": 3, "acceptance": 0.5}),
    (rk.Traffic, ("rate", "input", "output", "requests", "cv", "length_cv", "cached", "warm_up"), {"rate": 1.0}),
    (rk.Execution, ("loader_rate",), {}),
]


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: f"{wrong!r:.12}")
@pytest.mark.parametrize(("taken_by", "names", "given"), TAKEN)
def test_the_argument_is_named(taken_by: Callable[..., Any], names: tuple[str, ...], given: Any, wrong: Any) -> None:
    for name in names:
        with pytest.raises(InputError, match=name):
            taken_by(**{**given, name: wrong})


@pytest.mark.parametrize("wrong", ["x", 3, (2, 1), (0, 1), (1.5,), (1, "2"), (math.nan,)])
def test_captured_sizes_rise(wrong: Any) -> None:
    with pytest.raises(InputError, match="graph_sizes"):
        rk.Engine(graph_sizes=wrong)


def test_prices_and_promises_are_numbers() -> None:
    with pytest.raises(InputError, match="price of an hour: expected 0 to 1e\\+06; got 'x'"):
        rk.Price(currency="USD", hour="x")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="ttft_s='x'"):
        rk.ServiceLevel(ttft_s="x")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"spread": math.inf}, "spread: expected a share of the answers' length, 0 to 2; got inf"),
        ({"spread": "x"}, "spread: expected a share of the answers' length, 0 to 2; got 'x'"),
        ({"sm_clock": []}, r"clock: expected more than .*; got \[\] Hz"),
        ({"host": None}, "expected a name of hardware, or the path of a file; got None"),
    ],
)
def test_serving_names_what_is_wrong(given: dict[str, Any], message: str) -> None:
    decoder = rk.Decoder(layers=2, hidden=64, heads=4, kv_heads=4, head_dim=16, ffn=128, vocab=100)
    with pytest.raises(rk.errors.RooflinekitError, match=message):
        rk.serve(decoder, "nvidia-l4", **{"batch": 1, "input": 8, "output": 8, **given})
