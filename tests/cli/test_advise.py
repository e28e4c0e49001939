"""`rooflinekit advise`, and what is said of wrong use."""

import pytest
from command_line import Run

#: See the fixture `net`.
NET = "from torch import nn\nNet = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU())\n"

SIZE = ("-i", "batch,3,224,224", "--batch", 16)


def test_advice(run: Run, net: str) -> None:
    said = run("advise", net, *SIZE, "--gpu", "l4", "--other-gpu", "l40s").answered()
    assert said.startswith("Net, inference, batch 16, float32, eager, nvidia-l4: ")
    assert "nvidia-l40s: saves " in said
    document = run("advise", net, *SIZE, "--gpu", "l4", "--other-gpu", "l40s", "--json").document
    (direct,) = run("predict", net, *SIZE, "--gpu", "l40s", "--json").document["predictions"]
    (entry,) = (one for one in document["suggestions"] if one["what"] == "nvidia-l40s")
    assert entry["total_s"] == direct["total_s"]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((), "--gpu is missing"),
        (
            ("--gpu", "l4", "--gpu", "t4"),
            "--gpu: advice is for one GPU; got 2; name others that you could change to as --other-gpu",
        ),
        (("--gpu", "l4", "--other-gpu", "l44"), "unknown device 'l44'"),
    ],
)
def test_wrong_use_is_one_line(run: Run, net: str, args: tuple[str, ...], message: str) -> None:
    run("advise", net, *SIZE, *args).refused(message)
