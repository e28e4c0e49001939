"""Memory savers as Python that can be pasted into a training script."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from rooflinekit.errors import InputError
from rooflinekit.ir.graph import Graph
from rooflinekit.ir.op import DType, Phase
from rooflinekit.strategies.prediction import ParallelPrediction
from rooflinekit.strategies.records import FSDP, Savers
from rooflinekit.strategies.rewriting import PART, repeated_blocks, segments_of, within
from rooflinekit.strategies.saving import names_of
from rooflinekit.units import format_quantity

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


def pasted(p: ParallelPrediction, autocast: DType | None) -> str:
    """The savers and the sharding of a prediction, as a module with functions that are called once before training.

    Raises InputError where a checkpoint would span several modules, which no single call can wrap.
    """
    graph = _once(p.slowest.prediction.graph)
    found = [*_checkpoints(graph, p.savers), *_away(graph, p.savers), *_shards(graph, p), *_step(p.savers, autocast)]
    imports = dict.fromkeys(sorted(line for wanted, _ in found for line in wanted))
    return "\n".join([_head(p, autocast), *imports, "", *(text for _, text in found)])


def _checkpoints(graph: Graph, savers: Savers) -> Iterator[_Part]:
    if not savers.checkpoint:
        return
    blocks = _paths(graph, savers.checkpoint)
    names, extra = ["checkpoint"], ""
    if savers.save:
        names = ["CheckpointPolicy", "checkpoint", "create_selective_checkpoint_contexts"]
        extra = ", context_fn=functools.partial(contexts, BLOCKS[path])"
        yield (
            ["from collections import Counter"],
            f"BLOCKS = {_literal(_saved(graph, blocks, savers.save))}\n{_SELECTIVE}",
        )
    else:
        yield [], f"BLOCKS = {json.dumps(blocks)}"
    imports = ["import functools", "import torch", f"from torch.utils.checkpoint import {', '.join(names)}"]
    yield imports, _CHECKPOINT.replace("{context}", extra)


def _away(graph: Graph, savers: Savers) -> Iterator[_Part]:
    if chosen := savers.offload_activations:
        away = [path[0] for path in segments_of(graph)][:-1] if chosen is True else chosen
        yield ["import functools", "import torch"], f"AWAY = {json.dumps(away)}\n{_AWAY}"


def _shards(graph: Graph, p: ParallelPrediction) -> Iterator[_Part]:
    if isinstance(p.strategy, FSDP) and p.gpus > 1:
        text = f"UNITS = {json.dumps(repeated_blocks(graph))}\n{_SHARD}".replace("{again}", str(p.strategy.stage == 3))
        yield ["import torch", "from torch.distributed.fsdp import fully_shard"], text


def _step(savers: Savers, autocast: DType | None) -> Iterator[_Part]:
    if savers.accumulate > 1 or autocast:
        inside = f'{" " * 8}with torch.autocast("cuda", torch.{autocast.value}):\n{" " * 4}' if autocast else ""
        text = _STEP.replace("{region}", inside + " " * 8).replace("{parts}", str(savers.accumulate))
        yield ["from collections.abc import Sequence", "import torch"], text


def _head(p: ParallelPrediction, autocast: DType | None) -> str:
    """The docstring: what was predicted, and what is to be done by hand."""
    size = format_quantity(max(share.memory.peak_bytes for share in p.shares), "byte", binary=True)
    words = ", ".join([f"autocast {autocast}"] * bool(autocast) + [str(p.savers)])
    by_hand = [
        (p.savers.eight_bit, "The optimizer keeps its state in 8 bits: bitsandbytes.optim.AdamW8bit, for one."),
        (p.savers.offload, "The optimizer runs on the CPU: torchao.optim.CPUOffloadOptimizer, for one."),
        (p.strategy == FSDP(stage=1), "Predicted with whole gradients (ZeRO 1); FSDP shards them too."),
    ]
    lines = [
        f'"""Memory savers for {p.slowest.prediction.graph_name}, by rooflinekit fit-into: {words}.',
        f"\nPredicted: {format_quantity(p.total_s, 's')} a step, {size} at the peak of each GPU.",
        *(text for given, text in by_hand if given),
    ]
    return "\n".join([*lines, '"""', ""])


def _once(graph: Graph) -> Graph:
    """Without the further parts of the batch."""
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
    """By block a line, its calls as sets."""
    rows = [
        f"    {json.dumps(block)}: {{"
        + ", ".join(f'{json.dumps(kind)}: {{{", ".join(map(str, calls))}}}' for kind, calls in kinds.items())
        + "},"
        for block, kinds in saved.items()
    ]  # fmt: skip
    return "\n".join(["{", *rows, "}"])
