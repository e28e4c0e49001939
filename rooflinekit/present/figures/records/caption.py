"""The caption of a roofline figure: what a reader must know to use its numbers."""

from __future__ import annotations

from rooflinekit.model.algorithms import FEWER_FLOP
from rooflinekit.present.figures.records.figure import DeviceFacts, Figure, Roof, Series
from rooflinekit.present.figures.records.sentences import (
    crossing_sentences,
    floor_sentence,
    level_sentences,
    path_sentences,
    percent,
    roof_sentences,
    three_digits,
    wall_sentences,
)
from rooflinekit.units import format_quantity


def caption(figure: Figure) -> str:
    """What is shown and how it was counted, in plain sentences: devices, formats, clocks, bytes, FLOP, origin.

    Nothing in the text depends on how the figure is drawn, so it serves a paper's caption and a file's description.
    """
    devices = _listed([device.display_name for device in figure.devices])
    sentences = [*map(_series, figure.series)] or [f"Roofs of {devices}{' and of links' * bool(figure.links)}."]
    sentences += path_sentences(figure)
    if (figure.series or figure.trajectories) and not any(series.measured_s for series in figure.series):
        sentences.append("Predicted, not measured.")
    for device in figure.devices:
        sentences += _roofs(figure, device)
    if any(roof.provenance == "default share" for roof in figure.roofs):
        sentences.append("The shares were fitted on other GPUs, not measured on this hardware.")
    sentences += crossing_sentences(figure)
    sentences.append("A multiply-add counts as 2 FLOP.")
    if figure.points or figure.rail:
        sentences += _marks(figure)
    sentences += [sentence for floor in figure.floors if (sentence := floor_sentence(figure, floor))]
    sentences += wall_sentences(figure)
    sentences += [f"{note[0].upper()}{note[1:]}." for note in figure.notes]
    return " ".join(sentences)


def _series(series: Series) -> str:
    sizes = ", ".join(f"{name} = {value}" for name, value in series.sizes)
    return (
        f"{series.model}, {series.mode}{f', {sizes}' if sizes else ''}, on {series.device}: {_count(series.kernels)}, "
        f"GPU busy {format_quantity(series.gpu_s, 's')} of {format_quantity(series.total_s, 's')}."
        f"{_measured(series)}"
    )


def _measured(series: Series) -> str:
    if not series.measured_s:
        return ""
    error = percent(series.total_s / series.measured_s)
    return f" Measured: {format_quantity(series.measured_s, 's')}; predicted / measured − 1 is {error}."


def _roofs(figure: Figure, device: DeviceFacts) -> list[str]:
    """The device's datasheet, and what of it kernels are predicted to sustain."""
    mine = [roof for roof in figure.roofs if roof.device == device.name]
    stated = [roof for roof in mine if roof.provenance == "datasheet"]
    parts = [f"{roof.name} {roof.rate}" for roof in stated if roof.kind != "compute"]
    for roof in stated:
        if roof.kind == "compute":
            parts.append(f"{_accumulate(roof)} {roof.rate} (ridge {three_digits(figure.ridge(roof))} FLOP/byte)")
    clock = format_quantity(device.clock_hz, "Hz")
    if device.matrix_clock_hz != device.clock_hz:
        clock += f" (matrix units {format_quantity(device.matrix_clock_hz, 'Hz')})"
    found = [f"{device.display_name}, datasheet (solid), dense peaks at {clock}: {_listed(parts)}."]
    sustained = [f"{roof.name} {roof.rate} ({roof.origin})" for roof in mine if roof.provenance != "datasheet"]
    return [*found, f"Sustained (dashed): {_listed(sustained)}."] if sustained else found


def _accumulate(roof: Roof) -> str:
    """A matrix unit's name with the format that it adds up in."""
    math, _, unit = roof.name.partition(" ")
    if unit != "matrix" or math in ("fp64", "fp32"):
        return roof.name
    return f"{roof.name} with {'int32' if math == 'int8' else 'fp32'} accumulation"


def _marks(figure: Figure) -> list[str]:
    sentences = [
        *level_sentences(figure),
        "A mark's area is its share of the time in which the GPU is busy; its shape says what bounds it.",
    ]
    moved = {point.algorithm for point in figure.points if point.algorithm in FEWER_FLOP}
    if moved:
        sentences.append(f"FLOP are those of the algorithm predicted to run ({', '.join(sorted(moved))} where faster).")
    if figure.rail:
        count = sum(point.kernels for point in figure.rail)
        sentences.append(f"Left rail: {_count(count)} without FLOP, by byte/s.")
    sentences += roof_sentences(figure)
    if figure.omitted:
        sentences.append(f"Not shown, for it moves no bytes: {figure.omitted} of {_count(figure.kernels)}.")
    return sentences


def _listed(parts: list[str]) -> str:
    return ", ".join(parts)


def _count(kernels: int) -> str:
    return f"{kernels} kernel{'s' * (kernels != 1)}"
