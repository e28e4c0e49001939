"""The blocks of a model, which checkpointing, sharding and pipelines take as a whole."""

from __future__ import annotations

from collections.abc import Iterable

from rooflinekit.errors import InputError
from rooflinekit.ir.graph import Graph
from rooflinekit.ir.op import Phase, Role


def block_of(module: str) -> str:
    """The block that a module or parameter belongs to: up to the first number in its path, else its first part.

    >>> block_of("layer1.0.conv1"), block_of("transformer.h.11.attn"), block_of("head"), block_of("")
    ('layer1.0', 'transformer.h.11', 'head', '')
    """
    parts = module.split(".")
    number = next((i for i, part in enumerate(parts) if part.isdigit()), 0)
    return ".".join(parts[: number + 1])


def within(module: str, path: str) -> bool:
    """Whether a module is this one or below it."""
    return module == path or module.startswith(f"{path}.")


def blocks_of(graph: Graph) -> list[str]:
    """The blocks in the order in which forward comes to them; ops of the root itself belong to none."""
    forward = (p.op.module for p in graph.priced if p.op.phase is Phase.FORWARD)
    return [block for block in dict.fromkeys(map(block_of, forward)) if block]


def repeated_blocks(graph: Graph) -> list[str]:
    """Those with a number in their path, such as the layers of a stack; all, where there are none."""
    found = blocks_of(graph)
    numbered = [block for block in found if block.rpartition(".")[2].isdigit()]
    return numbered or found


def segments_of(graph: Graph) -> list[tuple[str, ...]]:
    """The repeated blocks, those without parameters, such as activations and pools, with the one before them."""
    owners = {block_of(spec.name.rpartition(".")[0]) for spec in graph.weights if spec.role is Role.WEIGHT}
    found: list[tuple[str, ...]] = []
    for block in repeated_blocks(graph):
        if block in owners or not found:
            found.append((block,))
        else:
            found[-1] = (*found[-1], block)
    return found


def known_modules(graph: Graph, paths: Iterable[str]) -> list[str]:
    """The paths. Raises InputError for one in which forward has no op."""
    modules = {p.op.module for p in graph.priced if p.op.phase is Phase.FORWARD}
    listed = list(paths)
    for path in listed:
        if not any(within(module, path) for module in modules):
            raise InputError(f"{graph.name}: no op of forward is in module {path!r}: blocks are {blocks_of(graph)}")
    return listed
