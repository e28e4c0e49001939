"""What data decide, said on the command line."""

from pathlib import Path

from command_line import Run

MODEL = """import torch
from torch import nn


class Chooses(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 4)

    def forward(self, x, mode=None):
        x = x if mode is None else x + mode
        return self.layer(x[x[:, 0] > 0])
"""


def test_assumptions_of_the_command_line(tmp_path: Path, run: Run) -> None:
    (tmp_path / "chooses.py").write_text(MODEL)
    target = f"{tmp_path / 'chooses.py'}:Chooses"
    call = ["predict", target, "--input", "batch,8", "--batch", "64", "--gpu", "nvidia-l4"]
    most = run(*call, "--json").document["predictions"][0]
    some = run(*call, "--json", "--assume", "mask=0.25", "--input", "mode=batch,8").document["predictions"][0]
    assert most["coverage"]["assumptions"] == ["mask 64 of 64 (its most; chooses.py:12)"]
    assert some["coverage"]["assumptions"] == ["mask 16 of 64 (given; chooses.py:12)"]
    assert "decided by data, so assumed: mask 64 of 64" in run(*call).out


def test_wrong_assumptions_are_told(tmp_path: Path, run: Run) -> None:
    (tmp_path / "chooses.py").write_text(MODEL)
    model = f"{tmp_path / 'chooses.py'}:Chooses"
    call = ["predict", model, "--input", "batch,8", "--batch", "64", "--gpu", "nvidia-l4"]
    for wrong in ("mask", "mask=much", "=3"):
        run(*call, "--assume", wrong).refused(has="expected a name and a number, a share or an answer")
    run(*call, "--strict").refused(has="strict: the data of a run decide mask")
    run(*call, "--assume", "msk=3").refused(has="this trace has no 'msk': it has 'mask'; did you mean 'mask'?")
