"""The same step in other ways: executed, traced or sized otherwise, each beside what it removes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from typing import TYPE_CHECKING, Any

from rooflinekit.errors import InputError, nearest
from rooflinekit.hardware.host import Host
from rooflinekit.ir.graph import Graph, autocast_format, resized, traced_with, whole_of
from rooflinekit.step.execution import Execution

if TYPE_CHECKING:
    import pandas as pd

    from rooflinekit.step.prediction import Prediction

#: The size of which there is a throughput, and that work is counted by.
BATCH = "batch"
_OPTIONS = ("execution", "autocast", "channels_last", "attention")
_CASTS = "_to_copy"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Variant:
    """One of the ways that are compared."""

    execution: Execution
    autocast: Any
    channels_last: bool
    sizes: tuple[tuple[str, int], ...]


def compare(p: Prediction, variants: Mapping[str, Any]) -> pd.DataFrame:
    """A row for p, and one for each combination of the variants, with these columns.

    execution, autocast ("none" without), channels_last, and the named sizes: which way it is; and attention where that
    is varied: "cudnn", "flash" or "flash-3", "chosen" for the one that PyTorch chooses. prediction: all of it.
    total_s, gpu_s, cpu_s, peak_bytes: of a step. fits: whether the memory suffices. regime.
    throughput: samples (of the size named batch) a second, where there is such a size.
    speedup: how many times faster than p; where the batch differs, for as many samples.
    removed_kernels, removed_casts: launches that it does without, and those of them that only change a format.
    removed_bytes: traffic. removed_gap_s: time in which the GPU neither computes nor moves data for a kernel: starts,
    waits. removed_gpu_s, removed_cpu_s. All of them per step of p: for as many samples; below 0 where there is more.
    removed_peak_bytes: of the step itself.
    """
    import pandas as pd

    own = _Variant(
        execution=p.execution, autocast=p.graph.autocast, channels_last=p.graph.channels_last,
        sizes=tuple(p.sizes.items()),
    )  # fmt: skip
    ways = dict.fromkeys([own, *_variants(p, own, variants)])
    table = pd.DataFrame([_row(way, found, p) for way, found in _predicted(p, ways)])
    return table if "attention" in variants else table.drop(columns="attention")


def variant_of(p: Prediction, changes: Mapping[str, Any], host: Host | None = None) -> Prediction:
    """The step in one other way, as `compare` takes them, or on another host. Raises InputError for several values."""
    if changes:
        table = compare(p, changes)
        if len(table) > 2:
            raise InputError(f"expected one value for each of {', '.join(changes)}; got {dict(changes)!r:.80}")
        p = table["prediction"].iloc[-1]
    return p if host is None else p.again(host=host)


def _variants(p: Prediction, own: _Variant, variants: Mapping[str, Any]) -> Iterator[_Variant]:
    sizes = [name for name in variants if name not in _OPTIONS]
    known = [*p.sizes, *(forced.name for forced in whole_of(p.graph).forced)]
    for name in sizes:
        if name not in known:
            words = (*_OPTIONS, *known)
            more = "" if known else ", or a size that an input names, such as Input('batch', …), which none does"
            raise InputError(f"compare: expected {', '.join(words)}{more}; got {name!r}{nearest(name, words)}")
    if not variants:
        raise InputError(f"compare: name what differs, such as execution=['eager', 'compiled']: {', '.join(_OPTIONS)}")
    lists = {name: _listed(name, given) for name, given in variants.items()}
    executions = [  # a word alone changes the backend of p's
        given if isinstance(given, Execution) else replace(p.execution, backend=given)
        for given in lists.get("execution", [own.execution])
    ]
    formats = [autocast_format(given) for given in lists.get("autocast", [own.autocast])]
    layouts = lists.get("channels_last", [own.channels_last])
    for given in layouts:
        if not isinstance(given, bool):
            raise InputError(f"channels_last: expected True or False; got {given!r}")
    if "attention" in lists:
        executions = [replace(one, attention=name) for name in lists["attention"] for one in executions]
    for values in product(*(lists[name] for name in sizes)):
        given_sizes = {**p.sizes, **dict(zip(sizes, values, strict=True))}
        for autocast, channels_last, execution in product(formats, layouts, executions):
            yield _Variant(
                execution=execution, autocast=autocast, channels_last=channels_last,
                sizes=tuple(given_sizes.items()),
            )  # fmt: skip


def _listed(name: str, given: Any) -> Sequence[Any]:
    if given is None or isinstance(given, str) or not isinstance(given, Iterable):
        return [given]
    found = list(given)
    if not found:
        raise InputError(f"compare: {name}: expected a value or a list of them; got {given!r:.60}")
    return found


def _predicted(p: Prediction, ways: Iterable[_Variant]) -> Iterator[tuple[_Variant, Prediction]]:
    """Each way with its prediction; the model is traced once for all that need the same trace."""

    @cache
    def traced(autocast: Any, channels_last: bool) -> Graph:
        return traced_with(p.graph, autocast=autocast, channels_last=channels_last)

    @cache
    def sized(autocast: Any, channels_last: bool, sizes: tuple[tuple[str, int], ...]) -> Graph:
        return resized(traced(autocast, channels_last), **dict(sizes))

    for way in ways:
        yield way, p.again(graph=sized(way.autocast, way.channels_last, way.sizes), execution=way.execution)


def _row(variant: _Variant, found: Prediction, base: Prediction) -> dict[str, Any]:
    sizes = dict(variant.sizes)
    # As many steps of it as one of p has samples for.
    steps = base.sizes[BATCH] / sizes[BATCH] if BATCH in sizes else 1.0
    removed = removed_of(found)
    return {
        "execution": variant.execution.backend,
        "autocast": "none" if variant.autocast is None else str(variant.autocast),
        "channels_last": variant.channels_last,
        "attention": variant.execution.attention or "chosen",
        **sizes,
        "total_s": found.total_s,
        "speedup": base.total_s / (steps * found.total_s),
        **({"throughput": sizes[BATCH] / found.total_s} if BATCH in sizes else {}),
        "gpu_s": found.gpu_s,
        "cpu_s": found.cpu_s,
        "regime": found.regime,
        "peak_bytes": found.memory.peak_bytes,
        "fits": found.memory.fits,
        **{f"removed_{name}": value - steps * removed[name] for name, value in removed_of(base).items()},
        "removed_peak_bytes": base.memory.peak_bytes - found.memory.peak_bytes,
        "prediction": found,
    }


def removed_of(p: Prediction) -> dict[str, float]:
    """What a way of running the step can do without: launches, casts among them, traffic, gaps, time on both sides."""
    terms = p.terms()
    return {
        "kernels": p.launched,
        "casts": sum(timing.kernel.kind.rpartition(".")[2] == _CASTS for timing in p.timings),
        "bytes": sum(float(timing.kernel.bytes) for timing in p.timings),
        "gap_s": terms["launch"] + terms["overhead"],
        "gpu_s": p.gpu_s,
        "cpu_s": p.cpu_s,
    }
