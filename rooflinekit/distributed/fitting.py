"""What makes a step fit: combinations of formats, memory savers and strategies, each predicted, and the fastest one."""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING, Any

from rooflinekit.distributed.groups import Setting, batch_of
from rooflinekit.distributed.planning import fits, plan
from rooflinekit.distributed.prediction import ParallelPrediction
from rooflinekit.distributed.records import DDP, FSDP, Savers, Strategy
from rooflinekit.distributed.rewriting import PART, bytes_of, repeated_blocks, segments_of, within
from rooflinekit.distributed.saving import kind_and_place, names_of, repeated_of
from rooflinekit.errors import InputError, SizeError
from rooflinekit.ir import notebook
from rooflinekit.ir.graph import Graph, resized, traced_with
from rooflinekit.ir.notebook import FirstLine
from rooflinekit.ir.op import DType, Phase
from rooflinekit.ir.sizes import check_names
from rooflinekit.step.capacity import MOST, guessed, largest
from rooflinekit.step.entry import by_issue
from rooflinekit.step.variants import BATCH
from rooflinekit.units import as_percent, format_bytes, format_quantity

if TYPE_CHECKING:
    import pandas as pd


_SURE = 0.95  # probability of fitting beside which a faster choice in doubt is set
_AS_FAST = 1.02  # times the fastest: no reason to change more

#: Into how many parts a batch may be cut; the fewest that fit are taken.
_PARTS = (1, 2, 4, 8, 16, 32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One combination of strategy and savers, predicted."""

    prediction: ParallelPrediction
    graph: Graph  # the step on one device, before savers and strategy
    largest: Mapping[str, int] = field(default_factory=dict)  # values at which this still fits, by the names of sizes

    @property
    def name(self) -> str:
        """The combination in words."""
        p = self.prediction
        strategy = f"{type(p.strategy).__name__}{f' {p.strategy.stage}' if isinstance(p.strategy, FSDP) else ''}"
        words = [strategy] if p.gpus > 1 else []
        words += [f"autocast {self.graph.autocast}"] if self.graph.autocast else []
        words += [str(p.savers)] if p.savers != Savers() else []
        return ", ".join(words) or "as it is"

    @property
    def peak_bytes(self) -> int:
        """The peak of the device that needs most memory."""
        return self.prediction.peak_bytes

    @property
    def policy(self) -> str:
        """It as Python to paste: selective checkpoints, units of FSDP, offload, the loop over parts of the batch.

        Raises InputError where a checkpoint spans several modules.
        """
        return pasted(self.prediction)

    @property
    def changes(self) -> int:
        """How many things differ from plain training in the graph's own formats."""
        p = self.prediction
        saved = sum(bool(getattr(p.savers, one.name) != one.default) for one in fields(Savers))
        return saved + bool(self.graph.autocast) + isinstance(p.strategy, FSDP)


@dataclass(frozen=True, kw_only=True, repr=False)
class Fitting(FirstLine):
    """All combinations that were tried, in the order in which they were."""

    trials: tuple[Trial, ...]

    @cached_property
    def _ranked(self) -> list[Trial]:
        return sorted(self.trials, key=lambda trial: trial.prediction.total_s)

    @property
    def fastest(self) -> Trial | None:
        """The fastest that fits, however much it changes; None where none does."""
        return next((trial for trial in self._ranked if trial.prediction.fits), None)

    @cached_property
    def best(self) -> Trial | None:
        """The fastest that fits, or one within 2 % of it that changes less; None where none does."""
        fitting = [trial for trial in self._ranked if trial.prediction.fits]
        near = [t for t in fitting if t.prediction.total_s <= _AS_FAST * fitting[0].prediction.total_s]
        return min(near, key=lambda trial: trial.changes, default=None)

    @property
    def policy(self) -> str:
        """Python to paste: selective checkpoints, units of FSDP, offload, the loop over parts of the batch."""
        return self._chosen.policy

    @property
    def prediction(self) -> ParallelPrediction:
        """The prediction of the best combination. Raises InputError where nothing fits."""
        return self._chosen.prediction

    @property
    def _chosen(self) -> Trial:
        if self.best is None:
            size = format_bytes(min(trial.peak_bytes for trial in self.trials))
            raise InputError(
                f"nothing that was tried fits: the least needs {size}; choose a smaller batch or more GPUs"
            )
        return self.best

    @property
    def table(self) -> pd.DataFrame:
        """One row a combination, the fastest first: name, total_s, peak_bytes, fits and its probability, throughput.

        And where it was asked for, largest_SIZE: the largest value of this size at which the combination fits.
        """
        import pandas as pd

        rows = [
            {
                "combination": trial.name,
                "total_s": trial.prediction.total_s,
                "peak_bytes": trial.peak_bytes,
                "fits": trial.prediction.fits,
                "probability": trial.prediction.memory_verdict().probability,
                "throughput": trial.prediction.throughput,
                **{f"largest_{name}": value for name, value in trial.largest.items()},
            }
            for trial in self._ranked
        ]
        return pd.DataFrame(rows)

    def to_dict(self) -> dict[str, Any]:
        """The table and the best one's prediction, ready for JSON."""
        best = None if self.best is None else {"combination": self.best.name, **self.best.prediction.to_dict()}
        return {"best": best, "tried": self.table.to_dict("records")}

    def __str__(self) -> str:
        return "\n".join([self._verdict(), *notebook.aligned(self._head, self._rows())])

    def _verdict(self) -> str:
        """What is chosen, and by which rule where it is not the fastest."""
        if self.best is None or self.fastest is None:
            return "nothing fits"
        if self.best is self.fastest:
            return f"fastest that fits: {self.best.name}{self._doubt}"
        chosen, least = (format_quantity(t.prediction.total_s, "s") for t in (self.best, self.fastest))
        return (
            f"chosen: {self.best.name}: {chosen} is within {as_percent(_AS_FAST - 1)} of the fastest that fits "
            f"({self.fastest.name}: {least}), and it changes less{self._doubt}"
        )

    @property
    def _doubt(self) -> str:
        """How likely it is that the choice fits; where that is in doubt, also the fastest way that surely does."""
        if not (doubt := self.prediction.memory_verdict().doubt.removeprefix(", ")):
            return ""
        sure = [one for one in self._ranked if one.prediction.memory_verdict().probability >= _SURE]
        if not sure or sure[0] is self.best:
            return f" ({doubt})"
        time = format_quantity(sure[0].prediction.total_s, "s")
        return f" ({doubt}; the fastest at {as_percent(_SURE)} or more is {sure[0].name}: {time})"

    def _repr_html_(self) -> str:
        return notebook.block(self._verdict(), notebook.table(self._head, self._rows()))

    @property
    def _head(self) -> list[str]:
        return ["combination", "time", "peak memory", "fits", *(f"largest {name}" for name in self.trials[0].largest)]

    def _rows(self) -> list[list[str]]:
        """Name, time, memory, whether it fits, and the largest sizes at which it does; the fastest first."""
        return [
            [
                one.name, format_quantity(one.prediction.total_s, "s"), format_bytes(one.peak_bytes),
                f"{'fits' if one.prediction.fits else 'does not fit'}{one.prediction.memory_verdict().doubt}",
                *(f"{name} ≤ {value}" for name, value in one.largest.items()),
            ]
            for one in self._ranked
        ]  # fmt: skip


def try_all(
    graph: Graph, setting: Setting, advance: Callable[[str], None] | None = None, largest_of: Sequence[str] = ()
) -> Fitting:
    """Every combination; the whole batch, and where that does not fit, the fewest parts that do.

    Then, where what keeps all activations does not fit, what keeps as many as fit: of each format and strategy in as
    few parts as checkpoints need, and of every other combination that would be 2 % faster than all that fit, if it
    computed nothing again. `largest_of`: sizes of which each combination's largest value is looked for.
    """
    check_names(largest_of, graph.sizes, complete=False)
    if (batch := batch_of(graph)) % setting.gpus:
        raise InputError(
            f"batch={batch} cannot be cut into equal parts for {setting.gpus} GPUs: expected a multiple of them"
        )
    trials: list[Trial] = []
    open_ends: list[tuple[_Combination, int, bool]] = []
    say = advance or (lambda text: None)

    def add(found: Iterable[Trial]) -> None:
        for trial in found:
            trials.append(trial)
            say(trial.name)

    def with_largest(trial: Trial) -> Trial:
        found = {}
        for name in largest_of:
            say(f"largest {name}: {trial.name}")
            found[name] = _largest(trial, setting, name)
        return replace(trial, largest=found)

    strategies: Sequence[Strategy] = (
        (DDP(), FSDP(stage=1), FSDP(stage=2), FSDP(stage=3)) if setting.gpus > 1 else (DDP(),)
    )
    for autocast, strategy in product(_formats(graph, setting), strategies):
        own = graph if autocast == graph.autocast else resized(traced_with(graph, autocast=autocast), **graph.sizes)
        for optimizer in _optimizers(graph):
            combination = _Combination(graph=own, setting=setting, strategy=strategy, savers=optimizer)
            add(combination.trials())
            if setting.execution.backend == "eager":
                open_ends += [(combination, *end) for end in combination.open_ends(wanted=optimizer == Savers())]
    for combination, parts, wanted in sorted(open_ends, key=lambda end: (not end[2], end[0].plain.prediction.total_s)):
        fitting = [trial.prediction.total_s for trial in trials if trial.prediction.fits]
        plain = combination.plain.prediction
        if wanted or _AS_FAST * plain.total_s < min(fitting, default=math.inf):
            add(map(combination.trial, choices(combination.least(parts), plain, combination.fits)))
    return Fitting(trials=tuple(map(with_largest, trials)))


@dataclass(frozen=True, kw_only=True)
class _Combination:
    """A format, a strategy and a way to keep the optimizer's state; parts and activations are chosen for it."""

    graph: Graph
    setting: Setting
    strategy: Strategy
    savers: Savers

    def trial(self, savers: Savers) -> Trial:
        """It with these savers, predicted."""
        found = plan(self.graph, self.setting, self.strategy, savers=savers)
        return Trial(prediction=found, graph=self.graph)

    def fits(self, savers: Savers) -> bool:
        """Whether it fits with these savers; nothing is timed."""
        return fits(self.graph, self.setting, self.strategy, savers)

    @cached_property
    def plain(self) -> Trial:
        """The whole batch with all activations."""
        return self.trial(self.savers)

    @cached_property
    def counts(self) -> list[int]:
        """Of parts into which the batch can be cut."""
        return [parts for parts in _PARTS if not batch_of(self.graph) % (parts * self.setting.gpus)]

    def least(self, parts: int) -> Savers:
        """What needs least in so many parts: checkpoints, whose inputs wait on the CPU where that is described."""
        eager = self.setting.execution.backend == "eager"
        return replace(self._in(parts, full=True), offload_activations=eager)

    @cached_property
    def fewest(self) -> dict[bool, int]:
        """With all activations and with checkpoints of all blocks: the place in `counts` of the first that fits."""
        able = self.plain.prediction.fits or self.fits(self.least(self.counts[-1]))
        places = range(len(self.counts) if able else 0)
        return {
            full: next((i for i in places if self.fits(self._in(self.counts[i], full))), len(self.counts))
            for full in (False, True)
        }

    def _in(self, parts: int, full: bool) -> Savers:
        return replace(self.savers, accumulate=parts, checkpoint=full)

    def trials(self) -> Iterator[Trial]:
        """The whole batch, and where that does not fit, the fewest parts that do."""
        for full, place in self.fewest.items():
            yield self.trial(self._in(1, True)) if full else self.plain
            if 0 < place < len(self.counts):
                yield self.trial(self._in(self.counts[place], full))

    def open_ends(self, *, wanted: bool) -> list[tuple[int, bool]]:
        """Of numbers of parts that do not fit with all activations: the most, and if `wanted` as few as checkpoints of
        all fit in; and whether they are tried in any case.
        """
        left = self.counts[: self.fewest[False]]
        if not left:
            return []
        fewest = left[min(self.fewest[True], len(left) - 1)]
        return [(fewest, True)] * wanted + [(left[-1], False)] * (not wanted or fewest != left[-1])


def _largest(trial: Trial, setting: Setting, name: str) -> int:
    """The largest value of a named size at which the combination fits and the model can be traced, the other sizes as
    they are; of the batch, among those that its parts divide. 0 where none does.

    Raises SizeError where memory does not grow with the size.
    """
    p = trial.prediction
    step = p.savers.accumulate * setting.gpus if name == BATCH else 1

    def fitting(count: int) -> bool:
        try:
            return fits(resized(trial.graph, **{name: step * count}), setting, p.strategy, p.savers)
        except SizeError:
            return False

    most = MOST // step
    guess = guessed(p.fullest.memory, trial.graph.sizes[name]) // step
    found = largest(fitting, most, guess)
    if found >= most:
        raise SizeError(f"size {name!r}: memory does not grow with it: even {step * most} fits")
    return step * found


def _optimizers(graph: Graph) -> Sequence[Savers]:
    """Ways to keep the optimizer's state: in place, in 8 bits, on the CPU; where it has any."""
    if not any(p.op.phase is Phase.OPTIMIZER and p.costs for p in graph.priced):
        return (Savers(),)
    return (Savers(), Savers(eight_bit=True), Savers(offload=True))


def _formats(graph: Graph, setting: Setting) -> Sequence[DType | None]:
    """The graph's own, and half precision with fp32 weights where the devices multiply it on engines."""
    if graph.autocast is not None or graph.origin.trace is None:
        return (graph.autocast,)
    known = set.intersection(*(set(setting.machine(number).device.matrix_peak) for number in setting.numbers))
    half = DType.BFLOAT16 if "bf16" in known else DType.FLOAT16 if "fp16" in known else None
    return (None,) if half is None else (None, half)


def choices(least: Savers, plain: ParallelPrediction, fits: Callable[[Savers], bool]) -> Iterator[Savers]:
    """Savers with just so many activations kept that the step fits, in four ways; those that do.

    By op: all blocks are checkpoints, and save what takes longest to compute again for its bytes. By block: the first
    ones are checkpoints, or the first ones' activations wait in the host's memory. Last, checkpoints whose inputs wait
    there: `least`. `plain` is the prediction of the whole batch with all activations.
    """
    if not fits(least):
        return
    full, base = replace(least, offload_activations=False), replace(least, offload_activations=False, checkpoint=False)
    units = _worth(plain)
    blocks = [path[0] for path in segments_of(plain.slowest.prediction.graph)]
    fewer = [tuple(blocks[:count]) for count in range(len(blocks) - 1, 0, -1)]
    saving = [replace(full, save=tuple(units[: count + 1])) for count in range(len(units))]
    again = [replace(base, checkpoint=first) for first in fewer]
    away = [replace(base, offload_activations=first) for first in fewer]
    for strategies in (saving, again, away):
        if count := bisect_left(strategies, True, key=lambda savers: not fits(savers)):
            yield strategies[count - 1]
    if not fits(full):
        yield least


def _worth(plain: ParallelPrediction) -> list[str]:
    """Ops that the blocks compute again as checkpoints, that which takes longest for its bytes first."""
    p = plain.slowest.prediction
    each = {issue.op.name: sum(span.seconds for span in own) for issue, own in by_issue(p.issues, p.spans)}
    once = _once(p.graph)
    seconds: dict[str, float] = defaultdict(float)
    sizes: dict[str, int] = defaultdict(int)
    for path in segments_of(once):
        for one in repeated_of(once, path):
            if one.costs and not one.op.read & one.op.made:
                name = kind_and_place(one.op, path)[1]
                seconds[name] += each.get(one.op.name, 0.0)
                sizes[name] += bytes_of({spec.memory: spec for spec in one.op.outputs}.values())
    return sorted(sizes, key=lambda name: seconds[name] / max(1, sizes[name]), reverse=True)


_Part = tuple[list[str], str]  # lines that import, and code

_CHECKPOINT = """
def checkpoint_blocks(model: torch.nn.Module) -> None:
    \"\"\"Makes blocks compute their activations again in backward. Call it once, before the model is wrapped.\"\"\"
    for path in BLOCKS:
        block = model.get_submodule(path)
        block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False{context})
"""

_SELECTIVE = """
def contexts(saved: dict[str, set[int]]):
    \"\"\"What `checkpoint` calls for each run of a block: it counts the calls of each operator.\"\"\"
    calls = {False: Counter(), True: Counter()}

    def policy(ctx, op, *args, **kwargs):
        kind = str(op.overloadpacket)
        number = calls[ctx.is_recompute][kind]
        calls[ctx.is_recompute][kind] += 1
        return CheckpointPolicy.MUST_SAVE if number in saved.get(kind, ()) else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)
"""

_AWAY = """
def offload_blocks(model: torch.nn.Module) -> None:
    \"\"\"Keeps what blocks leave for backward in page-locked memory of the host. Call it once.

    `save_on_cpu` waits for its copies; predicted are copies beside the next block, as torchtune's OffloadActivations.
    \"\"\"

    def away(forward, *args, **kwargs):
        with torch.autograd.graph.save_on_cpu(pin_memory=True):
            return forward(*args, **kwargs)

    for path in AWAY:
        block = model.get_submodule(path)
        block.forward = functools.partial(away, block.forward)
"""

_SHARD = """
def shard(model: torch.nn.Module) -> None:
    \"\"\"A unit of FSDP for each block, and one for the rest.\"\"\"
    for path in UNITS:
        fully_shard(model.get_submodule(path), reshard_after_forward={again})
    fully_shard(model, reshard_after_forward={again})
"""

_STEP = """
def train_step(model, loss_of, optimizer, batch: Sequence[torch.Tensor]) -> None:
    \"\"\"One step of the optimizer; loss_of(model, *part) gives the mean loss of a part of the batch.\"\"\"
    for part in zip(*(tensor.chunk({parts}) for tensor in batch)):
{region}loss = loss_of(model, *part) / {parts}
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def pasted(p: ParallelPrediction) -> str:
    """The savers and the sharding of a prediction, as a module with functions that are called once before training.

    Raises InputError where a checkpoint would span several modules, which no single call can wrap.
    """
    graph = p.slowest.prediction.graph
    found = [*_wrapping(_once(graph), p), *_step(p.savers, graph.autocast)]
    imports = dict.fromkeys(sorted(line for wanted, _ in found for line in wanted))
    return "\n".join([_head(p), *imports, "", *(text for _, text in found)])


def _wrapping(graph: Graph, p: ParallelPrediction) -> Iterator[_Part]:
    """What is called before training: for checkpoints, for activations on the host, for units of FSDP."""
    savers, names, extra = p.savers, ["checkpoint"], ""
    blocks = _paths(graph, savers.checkpoint) if savers.checkpoint else []
    if savers.save:
        names = ["CheckpointPolicy", "checkpoint", "create_selective_checkpoint_contexts"]
        extra = ", context_fn=functools.partial(contexts, BLOCKS[path])"
        saved = _literal(_saved(graph, blocks, savers.save))
        yield ["from collections import Counter"], f"BLOCKS = {saved}\n{_SELECTIVE}"
    elif savers.checkpoint:
        yield [], f"BLOCKS = {json.dumps(blocks)}"
    if savers.checkpoint:
        imports = ["import functools", "import torch", f"from torch.utils.checkpoint import {', '.join(names)}"]
        yield imports, _CHECKPOINT.replace("{context}", extra)
    if chosen := savers.offload_activations:
        away = [path[0] for path in segments_of(graph)][:-1] if chosen is True else chosen
        yield ["import functools", "import torch"], f"AWAY = {json.dumps(away)}\n{_AWAY}"
    if isinstance(p.strategy, FSDP) and p.gpus > 1:
        text = f"UNITS = {json.dumps(repeated_blocks(graph))}\n{_SHARD}".replace("{again}", str(p.strategy.stage == 3))
        yield ["import torch", "from torch.distributed.fsdp import fully_shard"], text


def _step(savers: Savers, autocast: DType | None) -> Iterator[_Part]:
    if savers.accumulate > 1 or autocast:
        inside = f'{" " * 8}with torch.autocast("cuda", torch.{autocast.value}):\n{" " * 4}' if autocast else ""
        text = _STEP.replace("{region}", inside + " " * 8).replace("{parts}", str(savers.accumulate))
        yield ["from collections.abc import Sequence", "import torch"], text


def _head(p: ParallelPrediction) -> str:
    autocast = p.slowest.prediction.graph.autocast
    words = ", ".join([f"autocast {autocast}"] * bool(autocast) + [str(p.savers)] * (p.savers != Savers())) or "none"
    by_hand = [
        (p.savers.eight_bit, "The optimizer keeps its state in 8 bits: bitsandbytes.optim.AdamW8bit, for one."),
        (p.savers.offload, "The optimizer runs on the CPU: torchao.optim.CPUOffloadOptimizer, for one."),
        (p.strategy == FSDP(stage=1), "Predicted with whole gradients (ZeRO 1); FSDP shards them too."),
    ]
    lines = [
        f'"""Memory savers for {p.slowest.prediction.graph_name}, by rooflinekit fit-into: {words}.',
        f"\nPredicted: {format_quantity(p.total_s, 's')} a step, {format_bytes(p.peak_bytes)} at the peak of each GPU.",
        *(text for given, text in by_hand if given),
    ]
    return "\n".join([*lines, '"""', ""])


def _once(graph: Graph) -> Graph:
    """The graph without the further parts of an accumulated batch."""
    return replace(graph, priced=tuple(p for p in graph.priced if PART not in p.op.name))


def _paths(graph: Graph, chosen: bool | tuple[str, ...]) -> list[str]:
    if chosen is not True:
        return list(chosen or ())
    segments = segments_of(graph)
    if several := next((path for path in segments if len(path) > 1), None):
        raise InputError(
            f"policy: the block {' and '.join(several)} is several modules: expected one to wrap; put them into a "
            "module of their own, such as nn.Sequential, and trace again"
        )
    return [path[0] for path in segments]


def _saved(graph: Graph, blocks: Sequence[str], save: Sequence[str]) -> dict[str, dict[str, list[int]]]:
    """By block and kind of operator, which calls of it are saved, counted from 0."""
    found: dict[str, dict[str, list[int]]] = {}
    for block in blocks:
        calls: Counter[str] = Counter()
        mine = found.setdefault(block, {})
        for p in graph.priced:
            if p.op.phase is Phase.FORWARD and within(p.op.module, block):
                if p.costs and set(names_of(p.op, [block])) & set(save):
                    mine.setdefault(p.op.kind, []).append(calls[p.op.kind])
                calls[p.op.kind] += 1
    return found


def _literal(saved: dict[str, dict[str, list[int]]]) -> str:
    rows = [
        f"    {json.dumps(block)}: {{"
        + ", ".join(f'{json.dumps(kind)}: {{{", ".join(map(str, calls))}}}' for kind, calls in kinds.items())
        + "},"
        for block, kinds in saved.items()
    ]  # fmt: skip
    return "\n".join(["{", *rows, "}"])
