"""`rooflinekit compare`: the table, its reasons, and what is said of wrong use."""

import pytest
from command_line import Run

#: See the fixture `net`.
NET = "from torch import nn\nNet = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU())\n"

SIZE = ("-i", "batch,3,224,224", "--batch", 256)  # large enough that GPUs decide, not hosts


def test_named_gpus_are_compared(run: Run, net: str) -> None:
    said = run("compare", net, *SIZE, "--gpu", "l4", "--gpu", "rtx-4090").answered()
    first, second = (said.index(f" {name}  ") for name in ("nvidia-rtx-4090", "nvidia-l4"))
    assert first < second
    assert "nvidia-rtx-4090 is " in said


def test_reasons_are_by_time_however_rows_are_sorted(run: Run, net: str) -> None:
    result = run("compare", net, *SIZE, "--gpu", "l4", "--gpu", "rtx-4090", "--sort", "per-watt")
    before, after = result.out.split("By time:\n")
    assert "nvidia-l4" in before
    assert after.startswith("nvidia-rtx-4090 is ")


def test_json_has_what_predict_says(run: Run, net: str) -> None:
    document = run("compare", net, *SIZE, "--architecture", "Turing", "--json").document
    names = [row["gpu"] for row in document["gpus"]]
    assert "nvidia-t4" in names
    assert "nvidia-l4" not in names
    (direct,) = run("predict", net, *SIZE, "--gpu", "nvidia-t4", "--json").document["predictions"]
    row = document["gpus"][names.index("nvidia-t4")]
    assert (row["total_s"], row["low_s"], row["regime"]) == (direct["total_s"], direct["low_s"], direct["regime"])


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--sort", "fast"), "sort: expected time, per-dollar, per-watt, share-of-peak, price, energy"),
        (("--gpu", "l4", "--vendor", "AMD"), "--vendor: filters choose among all GPUs; leave out them or --gpu"),
        (("--gpu", "l4", "--gpu", "nvidia-l4"), "gpus: 'nvidia-l4' is given twice"),
        (("--memory-min", "9 TB"), "gpus: none is left to compare; give other names or filters"),
        (("--memory-min", "9"), "least memory: "),
        (("--vendor", "Nvidea"), "vendor 'Nvidea': no device has it; did you mean 'NVIDIA'"),
    ],
)
def test_wrong_use_is_one_line(run: Run, net: str, args: tuple[str, ...], message: str) -> None:
    run("compare", net, *SIZE, *args).refused(message)
