"""Served language models in a terminal: a line a GPU, batch and context."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rooflinekit.errors import CapacityError, RooflinekitError
from rooflinekit.present.text.form import FORM
from rooflinekit.present.text.tables import Cell, flat, print_table, say, table, table_of, whole
from rooflinekit.serving.fleet import Capacity, FleetSearch
from rooflinekit.serving.launch import release_text
from rooflinekit.serving.served import MEASURES, SHARES, Served, ServedTraffic, Serving, limits_text
from rooflinekit.units import said


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """What was asked for where it cannot be served, as options of `rk.serve` and its like, and why."""

    asked: Mapping[str, Any]
    why: RooflinekitError

    @property
    def gpu(self) -> str:
        """The GPU, or the cluster."""
        return str(self.asked["gpu"] or self.asked["cluster"])

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        sizes = {name: self.asked[name] for name in ("batch", "input", "output") if name in self.asked}
        return {"gpu": self.gpu, **sizes, "why": str(self.why)}


def print_servings(found: Sequence[Serving], refused: Sequence[Refused] = ()) -> None:
    """One in words; of several a line each, below what is the same in all."""
    first = found[0]
    if FORM.get() == "text" and not found[1:] and not refused:
        say(*str(first).splitlines(), soft_wrap=True)
        return
    formats = [
        f"weights {one.weights}, cache {one.kv}{limits_text(one.decode.machine)}{release_text(one.engine)}"
        for one in found
    ]
    alike = len(set(formats)) == 1
    one_place = alike and not refused and _in_one_place(found)
    where = f" on {_gpus(first)}" if one_place else ""
    say(f"{first.decoder.name}{where}, {formats[0]}" if alike else first.decoder.name)
    told = {id(one): text for one, text in zip(found, formats, strict=True)}
    columns: dict[str, Cell] = {
        **({} if one_place else {"gpu": lambda one: _gpus(one) if alike else f"{_gpus(one)}, {told[id(one)]}"}),
        "clients": ("stream.clients", ""), "in": ("stream.input", ""), "out": ("stream.output", ""),
        "first token": ("ttft_s", "s"), "per token": ("tpot_s", "s"), "decode": ("decode_s", "s"),
        "bound": ("decode.regime", ""), "tokens/s": ("tokens_per_s", ".4g"),
        **({} if one_place and first.gpus == 1 else {"a GPU": ("tokens_per_s_per_gpu", ".4g")}),
        **(
            {"a launch $": ("tokens_per_s_per_dollar", ".3g")} if first.price_usd_per_hour is None
            else {"$/million": ("usd_per_million_tokens", ".3g")}
        ),
        "J/token": ("joules_per_token", ".3g"), "watts": ("power_w", ".3g"),
        "room for": lambda one: one.largest_batch(),
    }  # fmt: skip
    rows = table_of(columns, found, words=() if one_place else (0,))
    for left in refused:
        short = "does not fit" if isinstance(left.why, CapacityError) else "cannot run it"
        numbers = (str(left.asked[name]) for name in ("batch", "input", "output"))
        rows.add_row(left.gpu, *numbers, short, *["–"] * (len(columns) - 5))
    print_table(rows, lambda: flat(_documents(found, refused)))
    _print_left(found, (left.why for left in refused))


def _documents(found: Sequence[Serving | ServedTraffic], refused: Sequence[Refused]) -> list[dict[str, Any]]:
    return [*(one.to_dict() for one in found), *(one.to_dict() for one in refused)]


def _in_one_place(found: Sequence[Served]) -> bool:
    """Whether a line above says all that a column of GPUs would. Programs get the column."""
    return not whole() and len({_gpus(one) for one in found}) == 1


def print_rates(found: Sequence[ServedTraffic], refused: Sequence[Refused] = ()) -> None:
    """One rate in a few lines and a table of percentiles; of several a line each."""
    if len(found) == 1 and not refused:
        _print_one(found[0])
    else:
        _print_several(found, refused)
    _print_left(found, (str(left.why) for left in refused))


def _print_one(served: ServedTraffic) -> None:
    alone = served.alone
    formats = f"weights {served.weights}, cache {served.kv}{release_text(served.engine)}"
    say(f"{served.decoder.name} on {_gpus(served)}, {formats}, {_requests(served)}", soft_wrap=True)
    heads = ("", "mean", *(f"{share} %" for share in SHARES), "mean within 90 %")
    rows = []
    for measure, name in MEASURES.items():
        shares = (_s(served.percentile(measure, share)) for share in SHARES)
        rows.append((name, _s(served.mean(measure)), *shares, " to ".join(map(_s, served.bounds[measure]))))
    rows.append(("between any two tokens", "", *map(_s, served.gaps_s.values()), ""))
    print_table(table(heads, rows), lambda: flat([served.to_dict()]))
    waits = served.mean("queue_s") - alone.queue_s
    say(
        f"one request alone: first token {_s(alone.ttft_s)}, each further {_s(alone.tpot_s)}; queueing adds "
        f"{_more(waits)} before prefill, {_more(served.mean('ttft_s') - waits - alone.ttft_s)} in it, "
        f"{_more(served.mean('tpot_s') - alone.tpot_s)} a token",
        f"{served.requests_per_s:.4g} requests/s, {served.tokens_per_s:.4g} tokens/s; "
        f"{served.played.running:.3g} sequences on average, "
        f"{served.played.reading_s / served.played.busy_s:.0%} of the time in prefill, at most "
        f"{served.played.peak_cache:.0%} of the cache used"
        + (f", {served.played.preemptions} preempted" if served.played.preemptions else ""),
        *["requests arrive faster than they are answered, so waiting grows with their number"] * served.overloaded,
        *served.energy_lines(),
        before="  ",
        soft_wrap=True,
    )


def _print_several(found: Sequence[ServedTraffic], refused: Sequence[Refused]) -> None:
    first = found[0]
    say(f"{first.decoder.name}, {_requests(first)}", soft_wrap=True)
    heads = ("gpu", "weights", "requests/s", "waiting", "first token", "90 %", "99 %", "per token", "99 %",
             "whole answer", "99 %", "tokens/s", "J/token", "cache")  # fmt: skip
    rows = (
        (
            _gpus(one) + release_text(one.engine), one.weights,
            f"{one.traffic.rate:.4g}" + (" (too many)" if one.overloaded else ""),
            _s(one.mean("queue_s")), _s(one.mean("ttft_s")), _s(one.percentile("ttft_s", 90)),
            _s(one.percentile("ttft_s", 99)), _s(one.mean("tpot_s")), _s(one.percentile("tpot_s", 99)),
            _s(one.mean("e2e_s")), _s(one.percentile("e2e_s", 99)), f"{one.tokens_per_s:.4g}",
            said(one.joules_per_token, ".3g"), f"{one.played.peak_cache:.0%}",
        )
        for one in found
    )  # fmt: skip
    print_table(table(heads, rows), lambda: flat(_documents(found, refused)))


def print_capacities(found: Sequence[Capacity], refused: Sequence[Refused], load: float | None) -> None:
    """A line for each place, the cheapest first, or without a price the one with the most requests a GPU."""
    _print_table(sorted(found, key=_order), load, refused)
    _print_left([one.at for one in found], (str(left.why) for left in refused))


def print_fleets(found: FleetSearch) -> None:
    """The best, with the settings that differ; how many were looked at, and why others are none."""
    if found.best:
        _print_table(found.best, found.load, copies=True)
    met = "" if found.best else "; none meets the service level"
    say(
        f"{found.considered} combinations considered, {found.played} simulated: by an upper bound on their rates "
        f"the others cannot be better{met}", soft_wrap=True,
    )  # fmt: skip
    _print_left([one.at for one in found.best], (f"{name}: {why}" for name, why in found.refused))


def _print_table(
    found: Sequence[Capacity], load: float | None, refused: Sequence[Refused] = (), *, copies: bool = False
) -> None:
    level = found[0].level
    stated = ((name, getattr(level, name)) for name in ("ttft_s", "tpot_s", "e2e_s"))
    promised = ", ".join(f"{MEASURES[name]} within {_s(value)}" for name, value in stated if value is not None)
    first = found[0].at
    one_place = _in_one_place([one.at for one in found])
    where = f" on {_gpus(first)}" if one_place else ""
    kept = f"{promised}, for {level.share:.0%} of the requests:"
    say(f"{first.decoder.name}{where}, {_kind(first)}", kept, soft_wrap=True)
    engines = len({(one.at.engine, one.at.apart) for one in found}) > 1
    columns: dict[str, Cell] = {
        **({} if one_place else {"gpu": lambda one: _gpus(one.at)}),
        "weights": ("at.weights", ""), "cache": ("at.kv", ""),
        **({"engine": lambda one: _engine(one.at)} if engines else {}),
        "requests/s": lambda one: said(one.rate, ".3g") if one.rate else "none keeps it",
        **({} if one_place and found[0].gpus_of_a_copy == 1
           else {"a GPU": lambda one: said(one.rate / one.gpus_of_a_copy, ".3g") if one.rate else "–"}),
        "first token 90 %": lambda one: _s(one.at.percentile("ttft_s", 90)),
        "token 90 %": lambda one: _s(one.at.percentile("tpot_s", 90)),
        "tokens/s": ("tokens_per_s", ".4g"), "J/token": ("at.joules_per_token", ".3g"),
        "$/million": ("usd_per_million_tokens", ".3g"),
    }  # fmt: skip
    if load is not None:
        columns |= {"copies": lambda one: said(one.copies(load))} if copies else {}
        columns[f"GPUs for {load:.4g}/s"] = lambda one: said(one.gpus(load))
    lines = [one.to_dict(load) for one in found]
    print_table(table_of(columns, found), lambda: flat([*lines, *_documents((), refused)]))


def _engine(served: ServedTraffic) -> str:
    """The settings that a search varies."""
    e, apart = served.engine, served.apart
    words = [*([e.release] if e.release else ()), e.policy, f"{e.step_tokens} a step"]
    if e.speculation:
        words.append(f"{e.speculation.tokens} proposed")
    if apart is not None:
        words.append(f"{apart.prefill} + {apart.decode} engines")
    return ", ".join(words)


def _order(capacity: Capacity) -> tuple[bool, float, float]:
    usd = capacity.usd_per_million_tokens
    return (not capacity.rate, math.inf if usd is None else usd, -capacity.rate / capacity.gpus_of_a_copy)


def _requests(served: ServedTraffic) -> str:
    t = served.traffic
    left = f" ({t.warm_up} and {t.drain} at the ends not counted)" if t.warm_up or t.drain else ""
    return f"{t.requests} {_kind(served)}{left}"


def _kind(served: ServedTraffic) -> str:
    """How requests come and how long they are, without their number."""
    t = served.traffic
    arrivals = {0.0: "evenly", 1.0: "as a Poisson process"}.get(t.cv, f"with gaps that vary by {t.cv:.3g}")
    how = "as the log says" if t.log else arrivals
    lengths = f", lengths vary by {t.length_cv:.3g}" if t.length_cv else ""
    cached = f", {t.cached:.0%} of the prompts cached" if t.cached else ""
    return f"requests {how}, {t.input} tokens in, {t.output} out{lengths}{cached}"


def _gpus(served: Served) -> str:
    return f"{served.gpus} × {served.gpu}" if served.gpus > 1 else served.gpu


def _s(seconds: float) -> str:
    return said(seconds, "s")


def _more(seconds: float) -> str:
    """A difference of two times; 0 below what sums of floating-point numbers are good for."""
    return _s(seconds if abs(seconds) >= 1e-9 else 0.0)


def _print_left(found: Sequence[Served], reasons: Iterable[object]) -> None:
    """What was left out and why, what judges predictions, how to start the engines, notes: each line once."""
    notes = (note for one in found for note in one.notes())
    judged = (line for one in found for line in one.accuracy)
    launches = (line for one in found for line in one.launch_lines())
    for lines, before in ((reasons, "left out: "), (judged, "judged: "), (launches, ""), (notes, "note: ")):
        say(*dict.fromkeys(map(str, lines)), before=before, soft_wrap=True)
