"""`rooflinekit power` and `cost`, and what is said of wrong use."""

import pytest
from command_line import Run

#: See the fixture `net`.
NET = "from torch import nn\nNet = nn.Sequential(nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 2048))\n"

CALL = ("-i", "batch,2048", "--batch", 2048, "--gpu", "a40")


def test_every_limit_is_a_line(run: Run, net: str) -> None:
    result = run("power", net, *CALL, "--step", "50 W")
    assert (result.status, result.err) == (0, "")
    limits = [line.split()[0] for line in result.out.splitlines() if line.lstrip()[:1].isdigit()]
    assert limits == ["100", "150", "200", "250", "300"]
    assert "least energy at " in result.out
    assert "least energy × time at " in result.out


def test_costs_of_two_gpus(run: Run, net: str) -> None:
    bought = ("--purchase-price", "5000 USD", "--kwh-price", "0.25 USD", "--utilization", 0.5, "--pue", 1.4)
    result = run("cost", net, *CALL, "--gpu", "t4", "--price-per-hour", "0.50 USD", *bought, "--samples", "1e9")
    assert (result.status, result.err) == (0, "")
    assert "USD a million samples" in " ".join(result.out.split()) or "USD a million" in result.out
    assert "nvidia-t4" in result.out


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("power", "--power-limit", "100W"), "--power-limit: `power` tries every limit"),
        (("power", "--step", "25"), "--step '25': expected a quantity in W"),
        (("predict", "--power-limit", "20 W"), "nvidia-a40: power limit: expected more than "),
        (("predict", "--power-limit", "2 kg"), "--power-limit '2 kg': expected a quantity in W"),
        (("predict", "--sm-clock", "9 GHz"), "nvidia-a40: clock: expected more than "),
        (("cost",), "a price is missing: --price-per-hour"),
        (("cost", "--price-per-hour", "0.8"), "--price-per-hour '0.8': expected an amount and its currency"),
        (("cost", "--price-per-hour", "1 USD", "--kwh-price", "1 EUR"), "prices: expected one currency; got EUR, USD"),
        (("cost", "--prices", "none.yaml"), "none.yaml: "),
    ],
)
def test_wrong_use_is_one_line(run: Run, net: str, args: tuple[str, ...], message: str) -> None:
    command, *rest = args
    result = run(command, net, *CALL, *rest)
    assert (result.status, result.out) == (2, "")
    assert result.err.startswith(f"rooflinekit: {message}")
    assert result.err.count("\n") == 1
