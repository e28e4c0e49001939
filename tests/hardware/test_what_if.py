"""What-if devices: what follows from a change, what stays, and what cannot be changed."""

from pathlib import Path

import pytest
from refusals import refusal

from rooflinekit.errors import InputError
from rooflinekit.files import write_text
from rooflinekit.hardware import specs, what_if, yaml_file
from rooflinekit.hardware.device import Clock, Device, Memory

H100 = "nvidia-h100-sxm5-80gb"


def plain(**changes: object) -> Device:
    """100 SMs at 2 GHz, whose matrix peaks are printed at 1.5 GHz; fp64 at 2 GHz."""
    device = Device(
        name="plain",
        vendor="V",
        architecture="A",
        sm_count=100,
        lanes_per_sm=128,
        tensor_cores=400,
        clock=Clock(boost=2e9, tensor=1.5e9),
        dram=Memory(capacity=80e9, bandwidth=3e12, bus_width=4096, pin_rate=6e9),
        l2_capacity=50e6,
        matrix_peak={"fp64": 40e12, "fp16": 600e12},
        matrix_peak_fp16_accumulate={"fp16": 1200e12},
        vector_peak={"fp32": 51.2e12},
        board_power=700,
    )
    return device.replace(**changes)


def test_half_the_sms_halve_every_peak() -> None:
    half = plain(sm_count=50)
    assert half.matrix_peak == {"fp64": 20e12, "fp16": 300e12}
    assert half.matrix_peak_fp16_accumulate == {"fp16": 600e12}
    assert half.vector_peak == {"fp32": 25.6e12}
    assert half.tensor_cores == 200
    assert (half.dram, half.l2_capacity, half.board_power) == (plain().dram, 50e6, 700)


def test_lanes_scale_vector_peaks_alone() -> None:
    device = plain(lanes_per_sm=64)
    assert device.vector_peak == {"fp32": 25.6e12}
    assert device.matrix_peak == plain().matrix_peak


def test_each_clock_scales_its_own_peaks() -> None:
    boosted = plain(clock={"boost": "3 GHz"})
    assert boosted.clock == Clock(boost=3e9, tensor=1.5e9)
    assert boosted.vector_peak == {"fp32": 76.8e12}  # x 3/2
    assert boosted.matrix_peak == {"fp64": 60e12, "fp16": 600e12}  # fp64 at boost, fp16 at the tensor clock
    tensor = plain(clock={"tensor": 3e9})
    assert tensor.vector_peak == {"fp32": 51.2e12}
    assert tensor.matrix_peak == {"fp64": 40e12, "fp16": 1200e12}
    # Without a tensor clock of its own, the boost clock is behind matrix peaks too.
    one = plain(clock=Clock(boost=1.5e9)).replace(clock={"boost": 3e9})
    assert one.matrix_peak["fp16"] == 1200e12


def test_bandwidth_and_pins_follow_each_other() -> None:
    double = plain(dram={"bandwidth": "6 TB/s"})
    assert (double.dram.bandwidth, double.dram.pin_rate, double.dram.bus_width) == (6e12, 12e9, 4096)
    assert double.dram.capacity == 80e9
    wider = plain(dram={"bus_width": 8192})
    assert (wider.dram.bandwidth, wider.dram.pin_rate) == (6e12, 6e9)
    both = plain(dram={"bus_width": "8192 bit", "pin_rate": "9 Gbit/s"})
    assert both.dram.bandwidth == 9e12  # x 2 x 3/2
    wide_and_fast = plain(dram={"bus_width": 8192, "bandwidth": 3e12})
    assert wide_and_fast.dram.pin_rate == 3e9
    stated = plain(dram=Memory(capacity=1e9, bandwidth=1e12))
    assert stated.dram == Memory(capacity=1e9, bandwidth=1e12)


def test_what_is_given_stays() -> None:
    device = plain(sm_count=50, vector_peak={"fp32": 1e12}, tensor_cores=7)
    assert (device.vector_peak, device.tensor_cores) == ({"fp32": 1e12}, 7)
    assert device.matrix_peak["fp16"] == 300e12
    assert plain(name="other").matrix_peak == plain().matrix_peak


def test_written_variation_reads_back(tmp_path: Path) -> None:
    varied = what_if.vary(specs.load_device(H100), "my-h100", ["memory.bandwidth=6.7 TB/s", "sm_count=66"])
    path = tmp_path / "my-h100.yaml"
    write_text(yaml_file.spec_text(varied, "half"), path)
    assert specs.load_device(path) == varied
    assert path.read_text("utf-8").startswith("# half\nschema: 1\nname: my-h100\n")
    assert varied.aliases == ()
    assert varied.launch_date is None
    assert varied.notes is not None
    assert varied.notes.startswith(f"What-if of {H100}: memory.bandwidth=6.7 TB/s, sm_count=66. Two clocks")
    assert not varied.explained


@pytest.mark.parametrize("name", specs.device_names())
def test_every_device_survives_the_round_trip(name: str, tmp_path: Path) -> None:
    device = specs.load_device(name, allow_draft=True)
    path = tmp_path / "copy.yaml"
    write_text(yaml_file.spec_text(device, name), path)
    assert specs.load_device(path, allow_draft=True) == device


def test_peaks_that_are_set_are_explained(tmp_path: Path) -> None:
    varied = what_if.vary(specs.load_device("nvidia-l4"), "big", ["sm_count=29", "matrix_peak.fp16=999 TFLOP/s"])
    assert varied.matrix_peak["fp16"] == 999e12
    assert varied.matrix_peak["bf16"] == 60.6e12  # half of 121.2
    reason = "a what-if, nvidia-l4 with sm_count=29, matrix_peak.fp16=999 TFLOP/s"
    assert dict(varied.explained) == {"matrix_peak.fp16": reason, "ridge.fp16": reason}
    write_text(yaml_file.spec_text(varied, "x"), tmp_path / "big.yaml")
    assert specs.load_device(tmp_path / "big.yaml") == varied


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("sm_cuont=66", "--set sm_cuont: unknown key; did you mean 'sm_count'"),
        ("sm_count", "--set 'sm_count': expected KEY=VALUE, such as dram.bandwidth=\"6.7 TB/s\" or sm_count=66"),
        ("sm_count=", "--set 'sm_count=': expected KEY=VALUE, such as dram.bandwidth=\"6.7 TB/s\" or sm_count=66"),
        ("sm_count=0", "--set: sm_count: expected a number of at least 1; got 0"),
        ("sm_count=1.5", "--set: sm_count: expected a whole number without a unit; got '1.5'"),
        ("dram=5", "--set dram: expected a key inside dram, such as dram.type"),
        ("matrix_peak=5 TFLOP/s", "--set matrix_peak: expected a key inside matrix_peak, such as matrix_peak.tf32"),
        ("dram.bandwidth=600", "--set: dram: bandwidth: expected a quantity in B/s, such as '3 GB/s'; got '600'"),
        ("dram.bandwith=6 TB/s", "--set: dram: bandwith: unknown key; did you mean 'bandwidth'?"),
        ("dram.bandwidth.x=1", "--set dram.bandwidth.x: expected a key such as sm_count or dram.bandwidth"),
        ("name=x", "--set name: cannot be set; the name is that of --name"),
        ("draft=false", "--set draft: cannot be set"),
        ("interconnect.kind=x", "--set interconnect.kind: interconnect of nvidia-l4 holds no kind"),
        ("sm_count.x=1", "--set sm_count.x: sm_count of nvidia-l4 holds no x"),
        ("clock.boost=100 MHz", "--set: clock: expected base to be no faster than boost"),
        ("launch_date=soon", "--set: launch_date: expected a date, such as 2024-11-18; got 'soon'"),
    ],
)
def test_what_cannot_be_set(assignment: str, message: str) -> None:
    said = refusal(InputError, what_if.vary, specs.load_device("nvidia-l4"), "mine", [assignment])
    assert said.startswith(message)
    assert "\n" not in said


def test_lists_dates_and_words_can_be_set() -> None:
    settings = ["aliases=one, two", "launch_date=2030-01-02", "vendor=Me", "absent=fp8,fp4"]
    varied = what_if.vary(specs.load_device("nvidia-a100-sxm4-80gb"), "mine", settings)
    assert varied.aliases == ("one", "two")
    assert str(varied.launch_date) == "2030-01-02"
    assert (varied.vendor, varied.absent) == ("Me", ("fp8", "fp4"))


def test_a_name_that_no_file_may_have() -> None:
    said = refusal(InputError, what_if.vary, specs.load_device("nvidia-l4"), "My GPU", [])
    assert said == "--name: name: expected lower-case words joined by hyphens, such as 'nvidia-l4'; got 'My GPU'"
