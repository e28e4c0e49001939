"""The figure of attention's kernels shows the rates, and no text lies on another."""

import pytest
from overlaps import overlaps

import rooflinekit as rk
from rooflinekit.study.compare.crossover import attention_rates


@pytest.mark.parametrize("gpu", ["nvidia-h100-sxm5-80gb", "amd-mi300x"])
def test_lines_are_the_rates_and_the_thick_one_runs(gpu: str) -> None:
    device = rk.load_device(gpu)
    rates = attention_rates(device, head_dim=64, causal=True)
    panels = rk.plot.attention(device, head_dim=64, causal=True)
    for ax, found in zip(panels, (rates.forward, rates.backward), strict=True):
        names = {name: f"{name}, PyTorch's choice" if name == rates.chosen else name for name in found}
        drawn = {str(line.get_label()): [1e12 * y for y in line.get_ydata()] for line in ax.lines}
        assert drawn == {names[name]: pytest.approx(row) for name, row in found.items()}
        assert max(ax.lines, key=lambda line: line.get_linewidth()).get_label() == names[rates.chosen]
        assert not overlaps(ax)
