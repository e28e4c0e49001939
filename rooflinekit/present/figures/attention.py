"""Draws FLOP/s of a GPU's kernels of attention over the length of sequences."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from rooflinekit.hardware.device import Device
from rooflinekit.ir.arguments import checked
from rooflinekit.model.machine import Machine
from rooflinekit.present.figures.style import (
    SERIES_COLOURS,
    Venue,
    Width,
    drawing,
    fit_page,
    key_above,
    new_panels,
    plain_frame,
    style_of,
)
from rooflinekit.study.compare.crossover import AttentionRates, attention_rates

_MARKERS = "osD^vP"


@checked
def attention(
    subject: AttentionRates | Machine | Device,
    *,
    head_dim: int = 128,
    causal: bool = False,
    width: Width = "column",
    venue: Venue | None = None,
) -> list[Axes]:
    """Draws TFLOP/s in fp16 over the length of sequences, forward above and backward below, a line for each kernel.

    subject: a device or a machine, or what `attention_rates` made of one. The thick line is what PyTorch runs by
    itself. head_dim, causal: of the heads, where no rates are given. Returns the two Axes.
    Raises InputError as `attention_rates` does, and for another width or venue.
    """
    style = style_of(width, venue)
    rates = subject
    if not isinstance(rates, AttentionRates):
        rates = attention_rates(rates, head_dim=head_dim, causal=causal)
    with drawing():
        panels = new_panels(style, 2)
        handles = []
        for axes, found, name in zip(panels, (rates.forward, rates.backward), ("forward", "backward"), strict=True):
            handles = [
                Line2D(rates.lengths, [rate / 1e12 for rate in line], color=colour, marker=marker, markersize=3,
                       linewidth=2.0 if kernel == rates.chosen else 0.9, label=kernel)
                for (kernel, line), colour, marker in zip(found.items(), SERIES_COLOURS, _MARKERS, strict=False)
            ]  # fmt: skip
            for line in handles:
                axes.add_line(line)
            axes.set_xscale("log")
            axes.set_xlim(rates.lengths[0] / 1.2, rates.lengths[-1] * 1.2)
            axes.set_ylim(0, 1.1 * max(max(line) for line in found.values()) / 1e12)
            axes.set_ylabel(f"{name}\nTFLOP/s", fontsize=style.axis_font)
            axes.yaxis.set_major_locator(MaxNLocator(4))
            plain_frame(axes, style, grid="both")
        panels[1].xaxis.set_major_locator(FixedLocator(rates.lengths))
        panels[1].xaxis.set_minor_locator(NullLocator())
        panels[1].xaxis.set_major_formatter(FuncFormatter(lambda length, _: f"{length:g}"))
        panels[1].set_xlabel(f"length of sequences, heads of {rates.head_dim}{', causal' * rates.causal}",
                             fontsize=style.axis_font)  # fmt: skip
        key = [Line2D([], [], color=one.get_color(), marker=one.get_marker(), markersize=3, label=one.get_label(),
                      linewidth=one.get_linewidth()) for one in handles]  # fmt: skip
        key_above(panels[0], key, style)
        fit_page(panels[0])
    return panels
