"""Files of prices: each with currency, day and source."""

from datetime import date
from pathlib import Path

import pytest

from rooflinekit.errors import DeviceNotFoundError, InputError, SpecError
from rooflinekit.hardware.prices import PriceTable, load_prices, price_tables
from rooflinekit.hardware.specs import load_device

ONE = "{gpu: nvidia-l4, hour: 0.8, currency: USD, day: 2026-01-31, source: an offer}"


def read(folder: Path, *lines: str) -> PriceTable:
    file = folder / "prices.yaml"
    file.write_text("schema: 1\nprices:\n" + "".join(f"  - {line}\n" for line in lines))
    return load_prices(file)


def test_the_newest_price_by_any_name(tmp_path: Path) -> None:
    later = ONE.replace("nvidia-l4", "L4").replace("0.8", "0.7").replace("2026-01-31", "2026-03-01")
    price = read(tmp_path, ONE, later).of(load_device("nvidia-l4"))
    assert (price.hour, price.currency, price.day) == (0.7, "USD", date(2026, 3, 1))
    with pytest.raises(InputError, match="nvidia-t4: no price is given; there are prices of nvidia-l4"):
        read(tmp_path, ONE).of(load_device("nvidia-t4"))


def test_a_file_of_two_columns_holds_dollars_of_an_hour(tmp_path: Path) -> None:
    file = tmp_path / "prices.csv"
    file.write_text("gpu,dollars an hour\nh100,2.99\n\nNVIDIA L4, $0.70\n")
    table = load_prices(file)
    found = [table.of(load_device(name)) for name in ("nvidia-h100-sxm5-80gb", "nvidia-l4")]
    assert [(price.hour, price.currency) for price in found] == [(2.99, "USD"), (0.7, "USD")]
    assert table.unused([load_device("nvidia-l4")]) == ("h100",)
    file.write_text("h100,2.99\nl4,cheap\n")
    with pytest.raises(SpecError, match=r"line 2: expected a GPU and the dollars of an hour, such as 'h100,2.99'"):
        load_prices(file)
    file.write_text("h100,nan\n")
    with pytest.raises(SpecError, match="prices: 0: hour: "):
        load_prices(file)


def test_old_prices_say_so(tmp_path: Path) -> None:
    (price,) = read(tmp_path, ONE).prices
    assert price.note(date(2026, 7, 30)) == ""  # 180 days later
    assert price.note(date(2026, 7, 31)) == "nvidia-l4: the price of 0.8 USD an hour is 181 days old (an offer)"
    assert price.note(date(2026, 1, 30)).startswith("nvidia-l4: the price of 0.8 USD an hour is of a day to come, 2026")


def test_tables_by_name() -> None:
    for name in price_tables():
        table = load_prices(name)
        assert all(price.source for price in table.prices)
        for price in table.prices:
            assert table.of(load_device(price.gpu)) is not None  # each is a device that there is
    example = load_prices("example")
    (said,) = example.notes(load_device("nvidia-l4"), date(2026, 11, 2))
    assert said.startswith("prices are examples, nobody's offer")
    assert len(example.notes(load_device("nvidia-l4"), date(2028, 1, 1))) == 2  # and old
    assert example.notes(load_device("nvidia-k80"), date(2028, 1, 1)) == ()
    with pytest.raises(DeviceNotFoundError, match=r"unknown prices 'exampel': .* did you mean 'example'"):
        load_prices("exampel")
    with pytest.raises(SpecError, match=r"none\.yaml: no such file"):
        load_prices("none.yaml")


@pytest.mark.parametrize("lacking", ["currency: USD, ", "day: 2026-01-31, ", ", source: an offer", "hour: 0.8, "])
def test_nothing_may_be_missing(tmp_path: Path, lacking: str) -> None:
    with pytest.raises(SpecError, match=r"prices: 0: \w+: Field required; a price has gpu, hour"):
        read(tmp_path, ONE.replace(lacking, ""))


@pytest.mark.parametrize("wrong", ["hour: -1", "hour: 0.8 USD", "hour: .inf", "hour: 0"])
def test_prices_are_positive_numbers(tmp_path: Path, wrong: str) -> None:
    with pytest.raises(SpecError, match="prices: 0: hour: "):
        read(tmp_path, ONE.replace("hour: 0.8", wrong))
