"""`rooflinekit crossover`, and what is said of wrong use."""

import pytest
from command_line import Run

#: See the fixture `net`.
NET = "from torch import nn\nNet = nn.Sequential(nn.Linear(64, 128, bias=False))\n"

SIZE = ("-i", "batch,64", "--batch", 16)


def test_crossovers(run: Run, net: str) -> None:
    # the formula is derived in tests/study/test_intensity.py
    said = run("crossover", net, *SIZE, "--gpu", "t4", "--other-gpu", "l4", "--latex").answered()
    heading, *lines = said.splitlines()
    assert heading.startswith("Net, inference, batch ")  # bandwidths are of a step of one size
    assert heading.endswith(", float32, eager")
    assert lines[:2] == [
        "intensity of Net: 64*batch/(3*batch + 128) FLOP/byte",
        r"\frac{64 \mathrm{batch}}{3 \mathrm{batch} + 128}",
    ]
    assert lines[2].startswith("Net is compute-bound on nvidia-t4: ")
    document = run("crossover", net, *SIZE, "--gpu", "t4", "--other-gpu", "l4", "--json").document
    assert document["intensity"]["formula"] == "64*batch/(3*batch + 128)"
    assert [entry["size"] for entry in document["sizes"]] == ["batch", "batch"]
    assert document["bandwidths"][0]["stated_bytes_per_s"] == 300e9


def test_the_size_that_is_looked_for_need_not_be_given(run: Run, net: str) -> None:
    given, sought = (run("crossover", net, "-i", "batch,64", "--gpu", "t4", *size) for size in (("--batch", 3), ()))
    assert (given.status, sought.status) == (0, 0)
    assert given.out == sought.out
    assert given.out.startswith("Net, inference, float32, eager\n")
    refused = run("crossover", net, "-i", "batch,64", "--gpu", "t4", "--other-gpu", "l4")
    assert refused.err == "rooflinekit: --other-gpu compares one step: give its size, such as --batch 32\n"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((), "--gpu is missing"),
        (("--gpu", "l4", "--along", "seq"), "--along 'seq': no size of --input has this name; it has batch\n"),
        (("--gpu", "l4", "--module", "9"), "Net has no module '9'\n"),
        (("--gpu", "l4", "--module", "0", "--op", "mm"), "name a module or an op, not both\n"),
    ],
)
def test_wrong_use_is_one_line(run: Run, net: str, args: tuple[str, ...], message: str) -> None:
    run("crossover", net, *SIZE, *args).refused(message)
