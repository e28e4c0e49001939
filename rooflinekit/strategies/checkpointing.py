"""Activations that are computed again in backward: of whole blocks, or of some of their ops."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from types import MappingProxyType

from rooflinekit.errors import InputError
from rooflinekit.ir.graph import Graph
from rooflinekit.ir.op import Op, Phase, PricedOp
from rooflinekit.strategies.blocks import known_modules, segments_of, within
from rooflinekit.strategies.rewriting import Insertions, moved, with_ops


def checkpointed(
    graph: Graph, chosen: bool | tuple[str, ...], save: Collection[str] = (), *, whole: bool = False
) -> Graph:
    """Each block's forward ops once more before its backward, which then reads what they give.

    As `torch.utils.checkpoint` without reentry does it: nothing is computed again behind the last op whose result this
    backward reads. What the first forward made in the block dies with its last use there; what the block was given
    stays, and so does what the ops of `save` made, which are not run again (`create_selective_checkpoint_contexts`).
    whole: all of a block is run again, as before torch 2.1, with reentry, and by Megatron.

    Raises InputError for modules that are not there, and for an entry of `save` that is no op of any block.
    """
    paths = segments_of(graph) if chosen is True else [(path,) for path in known_modules(graph, chosen or ())]
    put = Insertions()
    priced, held, kept = list(graph.priced), dict(graph.held), dict(graph.saved)
    met: set[str] = set()
    for path in paths:
        inside = _inside(graph, path)
        forward = [priced[i] for i in inside if priced[i].op.phase is Phase.FORWARD]
        backward = [i for i in inside if priced[i].op.phase is Phase.BACKWARD]
        if not forward or not backward:
            continue
        saved = [p for p in forward if p.costs and set(names_of(p.op, path)) & set(save)]
        met |= {name for p in saved for name in names_of(p.op, path)}
        repeated = forward if whole else _needed(forward, saved, [priced[i] for i in backward])
        fetched = _before_last(forward, repeated)
        for p in saved:
            until = priced[backward[0 if id(p) in fetched else -1]].op.name
            held |= {spec.memory: until for spec in p.op.outputs}
        suffix = f" again in {path[0]}"
        again = _again(repeated, suffix)
        kept = {again.get(memory, memory): op for memory, op in kept.items()}
        put.before[backward[0]] += [moved(p, again, suffix, Phase.BACKWARD) for p in repeated]
        for i in backward:
            priced[i] = moved(priced[i], again)
    if missing := sorted(set(save) - met):
        known = dict.fromkeys(
            kind_and_place(p.op, path)[1] for path in paths for p in repeated_of(graph, path) if p.costs
        )
        raise InputError(f"save: {', '.join(missing)}: expected ops of these blocks: {', '.join(known)}")
    graph = replace(graph, priced=tuple(priced), held=MappingProxyType(held), saved=MappingProxyType(kept))
    return with_ops(graph, put)


def repeated_of(graph: Graph, path: tuple[str, ...]) -> list[PricedOp]:
    """What a block of these modules computes again as a checkpoint that saves nothing."""
    inside = [graph.priced[i] for i in _inside(graph, path)]
    forward, backward = ([p for p in inside if p.op.phase is phase] for phase in (Phase.FORWARD, Phase.BACKWARD))
    return _needed(forward, (), backward)


def _inside(graph: Graph, path: tuple[str, ...]) -> list[int]:
    return [i for i, p in enumerate(graph.priced) if any(within(p.op.module, block) for block in path)]


def names_of(op: Op, block: Sequence[str]) -> tuple[str, str, str]:
    """What `save` may call an op of a block, which has these modules: its kind, and with its place in the block."""
    kind, place = kind_and_place(op, block)
    return kind, place, kind.removeprefix("aten.")


def kind_and_place(op: Op, block: Sequence[str]) -> tuple[str, str]:
    """An op's kind, and that behind the path of its module inside the block.

    >>> kind_and_place(Op(name="x", kind="aten.mm", module="h.3.attn.proj"), ["h.3"])
    ('aten.mm', 'attn.proj:aten.mm')
    """
    path = next(one for one in block if within(op.module, one))
    return op.kind, f"{op.module[len(path) + 1 :]}:{op.kind}"


def _needed(forward: Sequence[PricedOp], saved: Sequence[PricedOp], backward: Iterable[PricedOp]) -> list[PricedOp]:
    """What is run again: up to the last op whose result backward reads, without those that are saved."""
    read = {spec.memory for p in backward for spec in p.op.inputs}
    last = max((i for i, p in enumerate(forward) if any(spec.memory in read for spec in p.op.outputs)), default=-1)
    kept = {id(p) for p in saved}
    return [p for p in forward[: last + 1] if id(p) not in kept]


def _before_last(forward: Sequence[PricedOp], repeated: Sequence[PricedOp]) -> set[int]:
    """Ids of the ops before the last that is run again; what others have saved is never fetched, and goes last."""
    return {id(p) for p in takewhile(lambda p: p is not repeated[-1], forward)} if repeated else set()


def _again(repeated: Sequence[PricedOp], suffix: str) -> Mapping[str, str]:
    """New names for memory that the repeated ops make, by the old ones."""
    made: dict[str, str] = {}
    given: set[str] = set()
    for p in repeated:
        given |= {spec.memory for spec in p.op.inputs if spec.memory not in made}
        made |= {spec.memory: spec.memory + suffix for spec in p.op.outputs if spec.memory not in given}
    return made
