"""Devices side by side: figures derived by hand, sorting, filters, the DataFrame."""

import subprocess
import sys

import pandas as pd
import pytest
from refusals import refusal

import rooflinekit as rk
from rooflinekit.errors import InputError, UnitError
from rooflinekit.hardware import catalog, specs


def test_figures_of_one_row() -> None:
    row = catalog.make_row(specs.load_device("nvidia-rtx-4090"))
    assert row.reached == 165.2e12
    assert row.ridge == pytest.approx(163.9, abs=0.05)  # 165.2e12 / 1.008e12
    assert row.per_watt == pytest.approx(367.1e9, abs=0.05e9)  # 165.2e12 / 450
    assert row.per_dollar == pytest.approx(103.3e9, abs=0.05e9)  # 165.2e12 / 1599
    row = catalog.make_row(specs.load_device("nvidia-rtx-4090"), "int8")
    assert row.reached == 660.6e12


def test_devices_that_share_a_board_share_its_power() -> None:
    # Four GPUs of 17.97 TFLOP/s on a board of 250 W: 4 x 17.97e12 / 250.
    row = catalog.make_row(specs.load_device("nvidia-a16"))
    assert row.per_watt == pytest.approx(287.5e9, rel=2e-3)
    # Two of 4.368 TFLOP/s on 300 W.
    assert catalog.make_row(specs.load_device("nvidia-k80"), "fp32").per_watt == pytest.approx(29.12e9, rel=1e-3)


def test_half_precision_is_computed_in_fp32_where_that_is_faster() -> None:
    # The P40 has fp16 at 1/64 of its 11.76 TFLOP/s.
    p40 = catalog.make_row(specs.load_device("nvidia-p40"))
    assert p40.peak("fp16") == 183.7e9
    assert p40.reached == 11.76e12
    # fp8 is not computed in another format: nothing is reached.
    assert catalog.make_row(specs.load_device("nvidia-p40"), "fp8").ridge is None
    assert catalog.make_row(specs.load_device("nvidia-p40"), "fp8").per_watt is None


def test_sorting() -> None:
    def names(**order: object) -> list[str]:
        return [row.device.name for row in catalog.list_rows(**order)]  # type: ignore[arg-type]

    assert names() == sorted(specs.device_names())
    assert names(reverse=True) == sorted(specs.device_names(), reverse=True)
    assert names(sort="memory", kind="gpu")[0] == "amd-mi355x"  # 288 GiB; the B300 has 268.6
    assert names(sort="power")[0] == "amd-mi355x"  # 1400 W
    assert names(sort="date", kind="gpu")[0] == "amd-mi355x"  # June 2025
    assert names(sort="price", kind="cpu")[:2] == ["intel-xeon-platinum-8480plus", "amd-epyc-7763"]  # $10710, $7890
    for key in catalog.KEYS:
        for reverse in (False, True):
            found = names(sort=key, reverse=reverse)
            assert set(found) == set(specs.device_names())
            missing = [
                catalog.KEYS[key](catalog.make_row(specs.load_device(n, allow_draft=True))) is None for n in found
            ]
            assert missing == sorted(missing), f"{key}: devices without the number come last"


def test_filters() -> None:
    rows = catalog.list_rows(vendor="nvidia", architecture="HOPPER", memory_min="90 GB")
    assert [row.device.name for row in rows] == [
        "nvidia-gh200-144gb", "nvidia-gh200-96gb", "nvidia-h100-nvl-94gb", "nvidia-h20-96gb", "nvidia-h200-nvl-141gb",
        "nvidia-h200-sxm-141gb",
    ]  # fmt: skip
    assert {row.device.name for row in catalog.list_rows(architecture="gfx90a")} == {
        "amd-mi210", "amd-mi250", "amd-mi250-gcd", "amd-mi250x", "amd-mi250x-gcd",
    }  # fmt: skip
    assert {row.device.kind for row in catalog.list_rows(kind="cpu")} == {"cpu"}
    # 80 GiB are 85.9 GB.
    assert "nvidia-h100-sxm5-80gb" in [row.device.name for row in catalog.list_rows(memory_min="85.8 GB")]
    assert "nvidia-h100-sxm5-80gb" not in [row.device.name for row in catalog.list_rows(memory_min="86 GB")]
    assert catalog.list_rows(vendor="AMD", architecture="Hopper") == ()


@pytest.mark.parametrize(
    ("filters", "start"),
    [
        ({"sort": "fp61"}, "sort: expected name, vendor, architecture, date, memory, "),
        ({"math": "fp17"}, "format: expected fp64, fp32, tf32, bf16, fp16, fp8, int8, fp4; got 'fp17'; did you mean "),
        ({"kind": "tpu"}, "kind: expected gpu, cpu; got 'tpu'; did you mean 'gpu' or 'cpu'?"),
        ({"vendor": "nvida"}, "vendor 'nvida': no device has it; did you mean 'NVIDIA'?; they are AMD, Apple, Intel, "),
        ({"architecture": "hoper"}, "architecture 'hoper': no device has it; did you mean 'Hopper'?; they are Ada "),
    ],
)
def test_words_that_no_device_has(filters: dict[str, str], start: str) -> None:
    assert refusal(InputError, catalog.list_rows, **filters).startswith(start)


def test_memory_without_a_unit() -> None:
    said = refusal(UnitError, catalog.list_rows, memory_min="40")
    assert said == "least memory: expected a quantity in B, such as '3 GB'; got '40'"


def test_data_frame() -> None:
    frame = rk.devices(math="bf16", sort="bandwidth", vendor="NVIDIA")
    assert frame.index.name == "name"
    assert frame.loc["nvidia-h100-sxm5-80gb", "bf16_flop_per_s"] == 989.4e12
    assert frame.loc["nvidia-h100-sxm5-80gb", "ridge_flop_per_byte"] == pytest.approx(295.2, abs=0.05)  # 989.4 / 3.352
    assert pd.isna(frame.loc["nvidia-v100-sxm2-16gb", "fp8_flop_per_s"])
    assert frame["bandwidth_bytes_per_s"].is_monotonic_decreasing
    assert bool(frame.loc["nvidia-b100", "draft"])
    assert not frame.loc["nvidia-b200-sxm-180gb", "draft"]
    assert len(rk.devices()) == 117
    assert list(rk.devices(vendor="AMD", architecture="Hopper").columns) == list(frame.columns)


def test_pandas_waits_until_it_is_asked_for() -> None:
    program = "import sys, rooflinekit as rk; rk.devices; sys.exit('pandas' in sys.modules or 'torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
