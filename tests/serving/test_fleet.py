"""`rk.search_fleet`: the cheapest come first, and nothing that could be among them is left out."""

import math
from dataclasses import dataclass
from typing import Any

import pytest

import rooflinekit as rk
from rooflinekit.api.serve import _setups
from rooflinekit.errors import InputError
from rooflinekit.serving.fleet import at_best, find_fleet

D = rk.Decoder(name="d", layers=8, hidden=2048, heads=16, kv_heads=4, head_dim=128, ffn=8192, vocab=32000)
LOAD = rk.Traffic(rate=1, input=512, output=32, requests=40)
LEVEL = rk.ServiceLevel(ttft_s=0.3, tpot_s=0.02)
ONE: dict[str, Any] = {"gpu": "nvidia-l4", "cluster": None, "tp": 1, "ep": 1, "dp": 1, "weights": "bf16", "kv": "bf16",
                       "engine": rk.Engine(), "disaggregation": None}  # fmt: skip
ASKED: dict[str, Any] = {"load": 60, "level": LEVEL, "traffic": LOAD}


@dataclass(frozen=True)
class Found:
    """What a capacity is asked for."""

    rate: float
    gpus_of_a_copy: int = 1

    def copies(self, load: float) -> int | None:
        return math.ceil(load / self.rate) if self.rate else None


def search(rates: dict[str, float], most: int = 5, load: float = 60, **prices: float) -> tuple[list[float], int]:
    """The rates of the best, and how many were played, where these are the rates that the GPUs keep."""
    setups = list(_setups(D, [{**ONE, "gpu": gpu} for gpu in rates], prices or None))
    highest: Any = lambda setup: Found(rates[setup.times.machine.name])  # noqa: E731
    found = find_fleet(setups, highest, LOAD, LEVEL, load, most)
    return [one.rate for one in found.best], found.played


def test_the_fewest_gpus_come_first_or_the_fewest_dollars() -> None:
    rates = {"nvidia-l4": 10.0, "nvidia-l40s": 20.0}
    assert search(rates) == ([20, 10], 2)  # 3 and 6 of them
    assert search(rates, **{"nvidia-l4": 1.0, "nvidia-l40s": 3.0}) == ([10, 20], 2)  # 6 and 9 dollars
    # as many GPUs: more requests for each
    assert search({"nvidia-l4": 30.0, "nvidia-l40s": 31.0})[0] == [31, 30]


def test_what_cannot_be_best_is_not_played() -> None:
    # A prompt takes 2 · 0.49 G · 512 = 0.5 TFLOP, and an L4 does 121 a second: fewer than 600, so it takes several.
    assert search({"nvidia-l4": 20.0, "nvidia-l40s": 600.0}, most=1, load=600) == ([600], 1)
    assert search({"nvidia-l4": 20.0, "nvidia-l40s": 0.0}, most=1, load=600) == ([20], 2)


def test_engines_that_differ_in_their_release_alone_have_steps_of_their_own() -> None:
    names = ["vllm:0.12", "tensorrt-llm:1.0"]
    setups = _setups(D, [{**ONE, "engine": rk.Engine(release=name)} for name in names], None)
    assert [setup.times.release for setup in setups] == names


def test_no_rate_exceeds_what_kernels_could_answer() -> None:
    (setup,) = _setups(D, [ONE], None)
    kept = rk.highest_rate(D, "nvidia-l4", level=LEVEL, traffic=LOAD).rate
    assert kept < at_best(setup, LOAD, LEVEL) < 5 * kept


def test_a_promise_that_nothing_keeps() -> None:
    level = rk.ServiceLevel(ttft_s=1e-6)
    found = rk.search_fleet(D, ["nvidia-l4"], **(ASKED | {"level": level}))
    assert (found.best, found.played) == ((), 0)
    assert found.refused == (
        ("1 × nvidia-l4, weights bf16, cache bf16", "a request by itself does not keep the level"),
    )


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"load": 0}, "load: expected requests a second, above 0; got 0"),
        ({"most": 0}, "most: expected 1 or more; got 0"),
        ({"tp": [2]}, "search_fleet: nothing to choose from"),
        ({"price_usd_per_hour": {}}, r"price_usd_per_hour: no price of nvidia-l4 \(stated: none\)"),
        ({"price_usd_per_hour": -1}, "price_usd_per_hour: expected dollars for one hour of a GPU, above 0"),
    ],
)
def test_wrong_use(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=f"^{message}"):
        rk.search_fleet(D, ["nvidia-l4"], **(ASKED | wrong))
