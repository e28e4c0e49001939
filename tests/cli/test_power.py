"""`rooflinekit power` and `cost`, and what is said of wrong use."""

import json

import pytest
from command_line import Run

#: See the fixture `net`.
NET = "from torch import nn\nNet = nn.Sequential(nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 2048))\n"

CONFIG = "llama-3.1-8b"
CALL = ("-i", "batch,2048", "--batch", 2048, "--gpu", "a40")


def test_every_limit_is_a_line(run: Run, net: str) -> None:
    said = run("power", net, *CALL, "--step", "50 W").answered()
    limits = [line.split()[0] for line in said.splitlines() if line.lstrip()[:1].isdigit()]
    assert limits == ["100", "150", "200", "250", "300"]
    assert "least energy at " in said
    assert "least energy × time at " in said


def test_costs_of_two_gpus(run: Run, net: str) -> None:
    bought = ("--purchase-price", "5000 USD", "--kwh-price", "0.25 USD", "--utilization", 0.5, "--pue", 1.4)
    result = run("cost", net, *CALL, "--gpu", "t4", "--price-per-hour", "0.50 USD", *bought, "--samples", "1e9")
    assert "USD a million" in result.answered()
    assert "nvidia-t4" in result.out


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("power", "--power-limit", "100W"), "--power-limit: `power` tries every limit"),
        (("power", "--step", "25"), "--step '25': expected a quantity in W"),
        (("predict", "--power-limit", "20 W"), "nvidia-a40: power limit: expected more than "),
        (("predict", "--power-limit", "2 kg"), "--power-limit '2 kg': expected a quantity in W"),
        (("predict", "--sm-clock", "9 GHz"), "nvidia-a40: clock: expected more than "),
        (("cost",), "a price is missing: --price h100=2.99"),
        (("cost", "--price-per-hour", "0.8"), "--price-per-hour '0.8': expected an amount and its currency"),
        (("cost", "--purchase-price", "1 USD", "--kwh-price", "1 EUR"), "prices: expected one currency; got EUR, USD"),
        (("cost", "--prices", "none.yaml"), "none.yaml: "),
        (("cost", "--price-per-hour", "1 USD", "--years", 2), "--years: belongs to --purchase-price, which is missing"),
        (
            ("cost", "--price-per-hour", "1 USD", "--pue", 2),
            "--pue: belongs to --kwh-price, --samples or --carbon, which is missing",
        ),
        (("cost", "--price-per-hour", "1 USD", "--gpus", 2), "--gpus: belongs to --cluster, which is missing"),
        (("power", "--strategy", "fsdp"), "--strategy: belongs to --cluster, which is missing"),
        (("power", "--pue", 1.5), "--pue: belongs to --rack, which is missing"),
        (("predict", "--depth", 1), "--depth: belongs to --by module, which is missing"),
        (
            ("transfer", "--measured", "3 ms", "--measured-on", "nvidia-t4", "--rank", 1),
            "--rank: belongs to a trace; got the time '3 ms'",
        ),
    ],
)
def test_wrong_use_is_one_line(run: Run, net: str, args: tuple[str, ...], message: str) -> None:
    command, *rest = args
    run(command, net, *CALL, *rest).refused(message)


TRAIN = ("--mode", "training", "--optimizer", "SGD")


def test_clusters_have_limits_and_prices_too(run: Run, net: str) -> None:
    size = ("-i", "batch,2048", "--batch", 2048, *TRAIN, "--cluster", "dgx-a100", "--gpus", 2)
    said = run("power", net, *size, "--step", "100 W", "--rack", "10 kW", "--json").answered()
    (study,) = json.loads(said)["studies"]
    assert [row["gpus"] for row in study["rack"]] == [100, 50, 32, 24]  # pairs of 2 · 100, 200, 300, 400 W
    costs = run("cost", net, *size, "--prices", "example", "--json")
    assert costs.err == "rooflinekit: prices are examples, nobody's offer: name a table of your own\n"
    (row,) = costs.document["rows"]
    assert (row["gpu"], row["gpus"]) == ("2 GPUs of dgx-a100", 2)
    assert row["cost"] == pytest.approx(2 * 2.5 * row["total_s"] / 3600)


def test_a_training_run_has_a_price_and_a_rack(run: Run) -> None:
    args = ("train", CONFIG, "--cluster", "dgx-h100", "--gpus", 4, "--batch", 16, "--seq", 2048, "--tp", 4)
    said = run(*args, "--price-per-hour", "3 EUR", "--tokens", "1e12", "--rack", "20 kW", "--json").answered()
    document = json.loads(said)
    (row,) = document["cost"]["rows"]
    step_s = document["step"]["total_s"]
    assert row["run_cost"] == pytest.approx(4 * 3 * 1e12 * step_s / (16 * 2048) / 3600)
    assert document["power"]["rack"][-1]["gpus"] == 28  # 20 kW / 700 W, in fours
    assert document["step"]["energy"]["gpus"] == 4
    held = run(*args, "--power-limit", "400 W", "--json").document
    assert held["step"]["total_s"] >= step_s


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("power", "NET", *CALL[:4], "--gpu", "a40", "--cluster", "dgx-a100"), "--gpu or --cluster: expected one"),
        (("power", "NET", *CALL[:4]), "--gpu is missing"),
        (
            ("power", "NET", *CALL[:4], "--cluster", "dgx-a100"),
            "--cluster: steps on several devices are training steps",
        ),
        (("cost", "NET", *CALL[:4], "--price-per-hour", "1 USD"), "--gpu is missing"),
        (("compare", "NET", *CALL, "--sort", "cost"), "sort 'cost': a price is missing: --price h100"),
        (("compare", "NET", *CALL, "--max-cost", "1"), "max cost: a price is missing: --price h100"),
        (("compare", "NET", *CALL, "--max-watts", "1"), "--max-watts '1': expected a quantity in W"),
        (("compare", "NET", *CALL, "--max-watts", "1 W"), "no GPU is left: nvidia-a40: draws "),
        (("search", "NET", *CALL, "--minimize", "cost"), "minimize 'cost': no price of an hour is known of nvidia-a40"),
        (("search", "NET", *CALL, "--minimize", "cost", "--prices", "none"), "unknown prices 'none': expected a file"),
        (("train", "LLAMA", "--cluster", "dgx-h100", "--batch", "8", "--tokens", "1e9"), "a price is missing: "),
        (("train", "LLAMA", "--cluster", "dgx-h100", "--batch", "8", "--power-limit", "20 W"), "nvidia-h100-sxm5-80gb"),
    ],
)
def test_wrong_money_is_one_line(run: Run, net: str, args: tuple[str, ...], message: str) -> None:
    run(*({"NET": net, "LLAMA": str(CONFIG)}.get(str(word), word) for word in args)).refused(message)
