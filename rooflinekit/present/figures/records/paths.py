"""Whole steps as marks on paths: as one thing about them changes, and on several devices under the roofs of links.

An interconnect's roof is that of memory with other bytes: FLOP/s are at most FLOP per byte sent times byte/s, as in
communication-aware rooflines (Cardwell and Song, HPC Asia 2019).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from rooflinekit.distributed.prediction import ParallelPrediction
from rooflinekit.errors import InputError
from rooflinekit.ir import keyed
from rooflinekit.present.figures.records.figure import Figure, Roof, Stop, Trajectory
from rooflinekit.present.figures.records.roofs import facts_of, highest, roofs_of, stated_roof
from rooflinekit.step.prediction import Prediction
from rooflinekit.study.compare import scaling
from rooflinekit.study.compare.scaling import Sent, names_of
from rooflinekit.study.explain.differences import main_format
from rooflinekit.timing.collectives import Link


def trajectories_of(
    predictions: Sequence[Prediction], words: Sequence[str] = (), *, joined: bool = True
) -> tuple[Trajectory, ...]:
    """The paths through these steps, in their order.

    words: a name for each prediction, on one path through all. Otherwise names say what differs; where sizes differ
    and something else too, there is a path over the sizes for each of the rest.
    joined: else each step is a path of its own, as of networks that do not come from one another.
    Raises InputError for fewer than two predictions, steps without FLOP or time, and another number of words.
    """
    if len(predictions) < 2:
        raise InputError(f"path: expected two predictions or more, in order; got {len(predictions)}")
    _check_words(words, len(predictions))
    facts = [
        {name: say(p) for name, say in _SAID.items()} | {name: str(value) for name, value in p.sizes.items()}
        for p in predictions
    ]
    named = dict.fromkeys(name for fact in facts for name in fact)
    differing = [name for name in named if len({fact.get(name) for fact in facts}) > 1]
    sizes = [name for name in differing if any(name in p.sizes for p in predictions)]
    if not joined:
        names = words or [_label(fact, differing, sizes) or f"#{i}" for i, fact in enumerate(facts, 1)]
        return tuple(
            Trajectory(name=f"{i} {word}", over="", stops=(_stop(p, str(word)),))
            for i, (p, word) in enumerate(zip(predictions, names, strict=True), 1)
        )
    if words:
        return (Trajectory(name="", over="", stops=tuple(map(_stop, predictions, map(str, words)))),)
    along = sizes or differing
    paths = keyed.lists(
        (", ".join(fact.get(name, "") for name in differing if name not in along),
         _stop(p, _label(fact, along, sizes) or f"#{i}"))
        for i, (p, fact) in enumerate(zip(predictions, facts, strict=True), 1)
    )  # fmt: skip
    return tuple(Trajectory(name=rest, over=", ".join(along), stops=tuple(stops)) for rest, stops in paths.items())


def _check_words(words: Sequence[str], count: int) -> None:
    if words and (isinstance(words, str) or len(words) != count):
        raise InputError(f"path: expected a name for each of {count} predictions; got {words!r}")


def _label(fact: Mapping[str, str], along: Sequence[str], sizes: Sequence[str]) -> str:
    """What a stop is called: its device, format or version, or its size with the name where there are several."""
    return ", ".join(f"{name} {fact.get(name, '')}" if name in sizes else fact.get(name, "") for name in along)


#: What may differ between steps beside sizes, as a reader would say it.
_SAID: Mapping[str, Callable[[Prediction], str]] = {
    "model": lambda p: p.graph_name,
    "device": lambda p: p.machine.device.short_title,
    "mode": lambda p: p.mode,
    "format": lambda p: main_format(p)[0].value,
    "execution": lambda p: p.execution.backend,
    "release": lambda p: str(p.graph.like) if p.graph.like else "",
    "layout": lambda p: "channels last" if p.graph.channels_last else "",
}


def _stop(p: Prediction, label: str) -> Stop:
    flop, moved = sum(float(timing.kernel.cost.flop) for timing in p.timings), float(p.bytes)
    if min(flop, moved, p.total_s) <= 0:
        raise InputError(f"path: {p.graph_name}: a step without FLOP or traffic has no place on the axes")
    return Stop(label=label, device=p.machine.name, flop=flop, bytes=moved, time_s=p.total_s, bound=p.regime)


_LinkNames = Mapping[tuple[str, Link], str]


def link_figure(given: Sequence[object], words: Sequence[str] = (), *, other: bool = False) -> Figure:
    """The roofline figure of steps on several devices: a mark for each by the bytes that a device sends, one by DRAM.

    words: a name for each step, on one path through all. Otherwise steps that differ in their number of devices alone
    are a path, and names say what differs. other: whether traffic of the L2 or shares of roofs are asked for.
    Raises InputError for that, for other subjects beside steps on several devices, and for steps that send nothing.
    """
    steps = [p for p in given if isinstance(p, ParallelPrediction)]
    if len(steps) < len(given):
        beside = next(type(part).__name__ for part in given if not isinstance(part, ParallelPrediction))
        raise InputError(f"roofline: steps on several devices stand alone in a figure; got {beside} beside them")
    if other:
        raise InputError("roofline: steps on several devices have no by_level and no normalized: leave them out")
    _check_words(words, len(steps))
    sent = [scaling.sent_over_links(p) for p in steps]
    for p, found in zip(steps, sent, strict=True):
        if not found:
            name = scaling.strategy_name(p.strategy, p.gpus)
            raise InputError(f"roofline: {name} on {p.gpus} of {p.cluster.name} sends nothing: it meets no link's roof")
    names = _link_names(steps, sent)
    roofs = [roof for p in steps for roof in roofs_of(p.slowest.prediction)]
    roofs += [roof for p, found in zip(steps, sent, strict=True) for one in found for roof in _roofs(p, one, names)]
    sends = [  # of each step the bytes by the name of the link
        keyed.sums((names[p.slowest.prediction.machine.name, one.link], one.bytes) for one in found)
        for p, found in zip(steps, sent, strict=True)
    ]
    return Figure(
        devices=tuple(dict.fromkeys(facts_of(p.slowest.prediction) for p in steps)),
        series=(), roofs=highest(roofs), points=(), rail=(), by_level=True,
        trajectories=_paths(steps, sends, words),
        notes=tuple(dict.fromkeys(note for p in steps for note in p.notes)),
    )  # fmt: skip


def _link_names(steps: Sequence[ParallelPrediction], sent: Sequence[Sequence[Sent]]) -> _LinkNames:
    """What each link is called: numbered, where a device has several of one name and other rates."""
    found: dict[tuple[str, Link], str] = {}
    for p, uses in zip(steps, sent, strict=True):
        for use in uses:
            device = p.slowest.prediction.machine.name
            rates = dict.fromkeys(
                link.bandwidth for (d, link) in (*found, (device, use.link))
                if d == device and link.name == use.link.name
            )  # fmt: skip
            number = list(rates).index(use.link.bandwidth) + 1
            found[device, use.link] = f"{use.link.name} #{number}" if number > 1 else use.link.name
    return found


def _roofs(p: ParallelPrediction, sent: Sent, names: _LinkNames) -> tuple[Roof, Roof]:
    """A link by its datasheet, and as fast as collectives with many bytes are."""
    device, link = p.slowest.prediction.machine.name, sent.link
    stated = stated_roof(device, "link", names[device, link], link.bandwidth)
    return stated, replace(stated, value=sent.rate, provenance="fitted share", share=sent.rate / link.bandwidth)


def _paths(
    steps: Sequence[ParallelPrediction], sends: Sequence[Mapping[str, float]], words: Sequence[str]
) -> tuple[Trajectory, ...]:
    if words:
        return (Trajectory(name="", over="", stops=tuple(map(_link_stop, steps, sends, map(str, words)))),)
    found, apart = [], [*keyed.lists((scaling.family_of(p), i) for i, p in enumerate(steps)).values()]
    grows = any(len({steps[i].gpus for i in members}) > 1 for members in apart)
    names = names_of([steps[members[0]] for members in apart], counted=not grows)
    if len(apart) == 1 and len(apart[0]) > 1:
        names = ("",)
    for name, members in zip(names, apart, strict=True):
        counts = [f"{name}{', ' * bool(name)}{steps[i].gpus} GPUs" for i in members]
        labels = counts if len(set(counts)) == len(counts) else names_of([steps[i] for i in members])
        labels = labels if len(members) > 1 or not name else [name]
        stops = tuple(_link_stop(steps[i], sends[i], label) for i, label in zip(members, labels, strict=True))
        found.append(Trajectory(name=name, over="devices", stops=stops))
    return tuple(found)


def _link_stop(p: ParallelPrediction, sent: Mapping[str, float], label: str) -> Stop:
    return Stop(
        label=label, device=p.slowest.prediction.machine.name, flop=scaling.flop_of_a_device(p),
        bytes=scaling.dram_bytes_of_a_device(p), time_s=p.total_s, bound=scaling.limited_by(p),
        link_bytes=tuple(sent.items()),
    )  # fmt: skip
