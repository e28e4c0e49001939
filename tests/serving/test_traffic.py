"""When requests come, and how long they are."""

import os
import statistics
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from rooflinekit.errors import InputError
from rooflinekit.serving.traffic import Request, Traffic


def gaps(traffic: Traffic) -> list[float]:
    times = [request.arrival_s for request in traffic.draw()]
    return [b - a for a, b in pairwise(times)]


@pytest.mark.parametrize("cv", [0.5, 1.0, 2.0])
def test_gaps_have_the_mean_and_variation_that_were_asked_for(cv: float) -> None:
    drawn = gaps(Traffic(rate=5, requests=20_000, cv=cv))
    assert statistics.mean(drawn) == pytest.approx(1 / 5, rel=0.05)
    assert statistics.stdev(drawn) / statistics.mean(drawn) == pytest.approx(cv, rel=0.05)


def test_even_gaps() -> None:
    assert gaps(Traffic(rate=4, requests=5, cv=0)) == [0.25] * 4


def test_lengths() -> None:
    drawn = Traffic(rate=5, requests=20_000, input=1000, output=200, length_cv=0.5, cached=0.25).draw()
    for name, mean in (("input", 1000), ("output", 200)):
        found = [getattr(request, name) for request in drawn]
        assert statistics.mean(found) == pytest.approx(mean, rel=0.02)
        assert statistics.stdev(found) / mean == pytest.approx(0.5, rel=0.05)
    assert all(request.cached == round(0.25 * request.input) for request in drawn if request.input > 3)


def test_a_seed_draws_the_same_requests_and_another_rate_the_same_lengths() -> None:
    one = Traffic(rate=5, requests=50, length_cv=0.5, seed=3)
    assert one.draw() == Traffic(rate=5, requests=50, length_cv=0.5, seed=3).draw()
    assert one.draw() != Traffic(rate=5, requests=50, length_cv=0.5, seed=4).draw()
    twice = one.at_rate(10).draw()
    for slow, fast in zip(one.draw(), twice, strict=True):
        assert (fast.input, fast.output) == (slow.input, slow.output)
        assert fast.arrival_s == pytest.approx(slow.arrival_s / 2)


def test_a_log(tmp_path: Path) -> None:
    file = tmp_path / "log.csv"
    file.write_text("id,arrival,input,output\na,102,7,3\nb,100,5,4\n", encoding="utf-8")
    traffic = Traffic.from_csv(file, warm_up=1)
    assert traffic.draw() == (Request(arrival_s=0, input=5, output=4), Request(arrival_s=2, input=7, output=3))
    assert (traffic.rate, traffic.input, traffic.requests, traffic.warm_up) == (0.5, 6, 2, 1)
    assert [request.arrival_s for request in traffic.at_rate(2).draw()] == [0, 0.5]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("arrival,input\n1,2\n", r"expected columns arrival, input, output \(and optionally cached\); output missing"),
        ("arrival,input,output\n1,2,x\n", "line 2: expected seconds and whole numbers of tokens, .*output='x'"),
        ("arrival,input,output\n1,2,3\nnan,2,3\n", "line 3: expected seconds"),
        ("arrival,input,output,cached\n1,2,3,2\n", "line 2: .* fewer cached than input"),
        ("arrival,input,output\n", "expected a request or more; got none"),
    ],
)
def test_a_file_that_is_no_log(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "log.csv"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=message):
        Traffic.from_csv(file)
    with pytest.raises(InputError, match="is a directory; expected a file"):
        Traffic.from_csv(tmp_path)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"rate": 0}, "traffic rate: expected requests a second, above 0; got 0"),
        ({"requests": 0}, "traffic requests: expected 1 to 1,048,576; got 0"),
        ({"cv": -1}, "traffic cv: expected a coefficient of variation, 0 to 10; got -1"),
        ({"cached": 1.1}, "traffic cached: expected a share"),
        ({"requests": 5, "warm_up": 3, "drain": 2}, "together fewer than the 5 requests; got 3 and 2"),
    ],
)
def test_wrong_numbers(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Traffic(**{"rate": 1, **wrong})


@pytest.mark.parametrize("device", ["/dev/zero", "pipe"])
def test_a_log_that_never_ends_is_not_read(tmp_path: Path, device: str) -> None:
    path = Path(device) if device.startswith("/") else tmp_path / device
    if not path.exists():
        os.mkfifo(path)
    with pytest.raises(InputError, match="is no regular file; expected a file"):
        Traffic.from_csv(path)
