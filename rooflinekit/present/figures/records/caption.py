"""The caption of a roofline figure: what a reader must know to use its numbers."""

from __future__ import annotations

from rooflinekit.kernels.algorithms import FEWER_FLOP
from rooflinekit.present.figures.records.figure import DeviceFacts, Figure, Floor, Series
from rooflinekit.present.figures.records.roofs import crossings
from rooflinekit.units import format_quantity

_NAMED = 5  # marks that a sentence names
_COMPULSORY = "Intensity counts compulsory DRAM traffic: each tensor read once and written once, in its storage format."


def level_sentences(figure: Figure) -> list[str]:
    """Sentences on the bytes that the intensities count, and on hollow marks."""
    if figure.normalized:
        return [
            "Drawn as shares: a kernel's FLOP/s by the datasheet peak of its own roof, over its intensity by that "
            "roof's ridge; the rail shows shares of the bandwidth.",
            _COMPULSORY,
        ]
    if figure.by_level:
        return [
            "Two marks a kernel, joined: FLOP by the traffic predicted at DRAM and at the L2; the level that takes "
            "longer is filled."
        ]
    if figure.measured:
        return [
            _COMPULSORY,
            "Hollow marks are predicted, filled ones measured at the same FLOP and bytes; beside a name stands "
            "predicted / measured − 1.",
        ]
    return [_COMPULSORY]


def roof_sentences(figure: Figure) -> list[str]:
    """Marks above a roof: errors until explained, or explained by what the L2 holds."""
    found = []
    if above := figure.above:
        named = ", ".join(f"{p.label} ({figure.excess(p):.3g} times)" for p in above[:_NAMED])
        more = f" and {len(above) - _NAMED} more" if len(above) > _NAMED else ""
        found.append(f"Ringed: above the roof, which is an error unless explained: {named}{more}.")
    held = 0
    for point in (*figure.points, *figure.rail):
        rate = point.bytes / (point.measured_s or point.time_s)
        held += point not in above and rate > figure.memory_roof(point.device).value * 1.02
    if held and not figure.by_level:
        found.append(f"Above the DRAM roof, for the L2 holds part of what they read: {held} mark{'s' * (held != 1)}.")
    return found


def link_sentences(figure: Figure) -> list[str]:
    """From where on links do not matter, and what the marks of steps on several devices are."""
    if not figure.links:
        return []
    ridges = ", ".join(f"{link.name} {link.rate} ({link.origin}) from {three_digits(figure.link_ridge(link))}"
                       for link in figure.links)  # fmt: skip
    stops = [stop for path in figure.trajectories for stop in path.stops]
    steps = ", ".join(f"{stop.label} ({format_quantity(stop.time_s, 's')})" for stop in stops)
    return [
        f"Steps on several devices: {steps}.",
        f"Links no longer limit: {ridges} FLOP per byte sent.",
        "Each step has two marks at the FLOP/s of a device, where what devices compute twice counts once: filled over "
        "FLOP per byte that a device sends, hollow over FLOP per byte of its compulsory DRAM traffic.",
        "Bytes sent are those of nccl-tests' bus bandwidth: of an all-reduce of S by n devices 2·(n − 1)/n·S.",
    ]


def path_sentences(figure: Figure) -> list[str]:
    """Sentences on the marks of paths."""
    if figure.links:
        return link_sentences(figure)
    found = []
    alone = [path.stops[0] for path in figure.trajectories if len(path.stops) == 1]
    if alone:
        times = (f"{stop.label}: {format_quantity(stop.time_s, 's')}" for stop in alone)
        found.append(f"steps, {'; '.join(times)}.")
    for path in (path for path in figure.trajectories if len(path.stops) > 1):
        over = f" over {path.over}" if path.over else ""
        name = f"{path.name}, " if path.name else ""
        first, last = path.stops[0], path.stops[-1]
        steps = " to ".join(f"{stop.label} {format_quantity(stop.time_s, 's')}" for stop in (first, last))
        found.append(f"{name}path{over}, {len(path.stops)} steps, from {steps}.")
    if found:
        found[0] = found[0][0].upper() + found[0][1:]
        found.append("Each mark is a whole step: FLOP of its kernels by wall time, over FLOP by compulsory bytes.")
    return found


def floor_sentence(figure: Figure, floor: Floor) -> str:
    """How many kernels wait for their start, and below which work that is so."""
    (series,) = (series for series in figure.series if series.name == floor.series)
    least = floor.start_s * figure.memory_roof(floor.device).value
    name = f"{floor.series}: " if len(figure.series) > 1 else ""
    return (
        f"{name}{floor.kernels} of {len(series.prediction.timings)} kernels wait longer for their start "
        f"({format_quantity(floor.start_s, 's')} or more) than they work; at the memory roof this concerns what moves "
        f"less than {format_quantity(least, 'byte')}, and half of the kernels move less than "
        f"{format_quantity(floor.median_bytes, 'byte')}."
    )


def percent(ratio: float) -> str:
    """How far a ratio is from 1, with its sign.

    >>> percent(1.123), percent(0.9)
    ('+12 %', '−10 %')
    """
    return f"{ratio - 1:+.0%}".replace("%", " %").replace("-", "−")


def three_digits(value: float) -> str:
    """A number with three significant digits and no exponent.

    >>> three_digits(1174.3), three_digits(1.25e6), three_digits(9.561)
    ('1170', '1250000', '9.56')
    """
    rounded = float(f"{value:.3g}")
    return f"{rounded:.0f}" if rounded >= 1e5 else f"{rounded:g}"


def caption(figure: Figure) -> str:
    """What is shown and how it was counted, in plain sentences: devices, formats, clocks, bytes, FLOP, origin.

    Nothing in the text depends on how the figure is drawn, so it serves a paper's caption and a file's description.
    """
    names = {device.name: device.display_name for device in figure.devices}
    devices = ", ".join(names.values())
    sentences = [_series(series, names[series.device]) for series in figure.series]
    sentences = sentences or [f"Roofs of {devices}{' and of links' * bool(figure.links)}."]
    sentences += path_sentences(figure)
    if (figure.series or figure.trajectories) and not figure.measured:
        sentences.append("Predicted, not measured.")
    for device in figure.devices:
        sentences += _roofs(figure, device)
    if any(roof.provenance == "default share" for roof in figure.roofs):
        sentences.append("The shares were fitted on other GPUs, not measured on this hardware.")
    short = {device.name: device.short_name for device in figure.devices}
    ahead = [f"{short[c.left]} is ahead below {three_digits(c.at[0])} FLOP/byte, {short[c.right]} above ({c.by})"
             for c in crossings(figure)]  # fmt: skip
    sentences += [f"By datasheets, {'; '.join(ahead)}."] if ahead else []
    sentences.append("A multiply-add counts as 2 FLOP.")
    if figure.points or figure.rail:
        sentences += _marks(figure)
    sentences += [floor_sentence(figure, floor) for floor in figure.floors if floor.kernels]
    for series in (series for series in figure.series if not series.prediction.memory.fits):
        m = series.prediction.memory
        need, have = (format_quantity(size, "byte") for size in (m.reserved_bytes + m.context_bytes, m.capacity))
        sentences.append(f"{series.name}: needs {need} of {have}: does not fit, at any intensity.")
    sentences += [f"{note[0].upper()}{note[1:]}." for note in figure.notes]
    return " ".join(sentences)


def _series(series: Series, device: str) -> str:
    p, measured = series.prediction, ""
    sizes = ", ".join(f"{name} = {value}" for name, value in p.sizes.items())
    if series.measured_s:
        error = percent(p.total_s / series.measured_s)
        measured = f" Measured: {format_quantity(series.measured_s, 's')}; predicted / measured − 1 is {error}."
    return (
        f"{p.graph_name}, {p.mode}{f', {sizes}' if sizes else ''}, on {device}: {_count(len(p.timings))}, "
        f"GPU busy {format_quantity(p.gpu_s, 's')} of {format_quantity(p.total_s, 's')}.{measured}"
    )


def _roofs(figure: Figure, device: DeviceFacts) -> list[str]:
    mine = [roof for roof in figure.roofs if roof.device == device.name]
    stated = [roof for roof in mine if roof.provenance == "datasheet"]
    parts = [f"{roof.name} {roof.rate}" for roof in stated if roof.kind != "compute"]
    for roof in (roof for roof in stated if roof.kind == "compute"):
        math, _, unit = roof.name.partition(" ")
        sums = f" with {'int32' if math == 'int8' else 'fp32'} accumulation"
        name = roof.name + sums * (unit == "matrix" and math not in ("fp64", "fp32"))
        parts.append(f"{name} {roof.rate} (ridge {three_digits(figure.ridge(roof))} FLOP/byte)")
    clock = format_quantity(device.clock_hz, "Hz")
    if device.matrix_clock_hz != device.clock_hz:
        clock += f" (matrix units {format_quantity(device.matrix_clock_hz, 'Hz')})"
    found = [f"{device.display_name}, datasheet (solid), dense peaks at {clock}: {', '.join(parts)}."]
    sustained = [f"{roof.name} {roof.rate} ({roof.origin})" for roof in mine if roof.provenance != "datasheet"]
    return [*found, f"Sustained (dashed): {', '.join(sustained)}."] if sustained else found


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


def _count(kernels: int) -> str:
    return f"{kernels} kernel{'s' * (kernels != 1)}"
