"""What a device runs as one of a tensor group, one of a context group and one of an expert group."""

from __future__ import annotations

from dataclasses import replace

from rooflinekit.errors import InputError
from rooflinekit.ir.graph import Graph
from rooflinekit.strategies.context import cut_by_context
from rooflinekit.strategies.experts import Spread, spread
from rooflinekit.strategies.records import FSDP, Mesh
from rooflinekit.strategies.sequence import cut_by_tokens
from rooflinekit.strategies.tensor import cut


def within_groups(graph: Graph, mesh: Mesh, copies: int, batch: int) -> Spread:
    """The device's part of a copy's step of so many samples.

    Raises InputError for combinations that are not modelled.
    """
    if copies % mesh.expert:
        raise InputError(
            f"Mesh expert: groups are taken out of the copies: expected a divisor of {copies}; got {mesh.expert}"
        )
    if mesh.expert > 1 and isinstance(mesh.data, FSDP):
        raise InputError("Mesh expert: experts that are shared out take DDP between copies; got data=FSDP")
    if mesh.pipeline > 1 and (mesh.expert > 1 or mesh.sequence):
        raise InputError(
            "a pipeline's stages take tensor and context groups: not sequence=True, nor expert of 2 or more"
        )
    if mesh.context > 1 and mesh.expert > 1:
        raise InputError("Mesh context: sequences are cut of models without shared experts; got expert of 2 or more")
    own = spread(cut_by_context(graph, mesh.context, mesh.context_way, batch), mesh.expert, mesh.imbalance)
    cut_graph = cut_by_tokens(own.graph, mesh.tensor) if mesh.sequence else cut(own.graph, mesh.tensor)
    return replace(own, graph=cut_graph)
