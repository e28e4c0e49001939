"""Mixtures of experts in a graph, found by data and shapes: which ops are experts, and what goes into and out of them.

Two forms are known. Batched: weights [experts, …] that multiply tokens as a batch (`torch.bmm`, of a buffer with as
many rows for each expert) or in groups (`torch._grouped_mm`, of rows sorted by expert). Listed: equal modules under
numbers of one path, of which each takes its own rows of a buffer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from rooflinekit.errors import InputError
from rooflinekit.ir.graph import Graph
from rooflinekit.ir.op import Op, Phase, PricedOp, Role, TensorSpec
from rooflinekit.strategies.parameters import belonging_to, copies_of, owners_of
from rooflinekit.strategies.tokenwise import is_elementwise

_BATCHED = ("aten.bmm", "aten.baddbmm", "aten._grouped_mm")


@dataclass(slots=True, kw_only=True)
class Mixture:
    """Experts of one form. Memory is named as in the graph, ops by their places."""

    count: int  # experts
    weights: set[str]  # memory of their parameters, of casts of them, their gradients and the optimizer's state
    members: dict[int, int | None] = field(default_factory=dict)  # the experts' ops; of which expert, None for all
    made: set[str] = field(default_factory=set)  # tokens that they make
    path: str = ""  # of modules in a list
    owners: dict[str, int] = field(default_factory=dict)  # the expert of each of the weights, in a list

    def enter(self, graph: Graph) -> Iterator[tuple[int, TensorSpec]]:
        """What members read that others have made, with the place."""
        standing = {spec.memory for spec in graph.weights}
        for i in sorted(self.members):
            for spec in graph.priced[i].op.inputs:
                own = spec.memory in self.made or spec.memory in self.weights or spec.memory in standing
                if not own and int(spec.numel) > self.count and spec.dtype.is_floating:
                    yield i, spec

    def leave(self, graph: Graph, phase: Phase) -> dict[str, TensorSpec]:
        """What others read in a phase of what members have made, as the op that makes it says."""
        specs = {
            spec.memory: spec for i in self.members for spec in graph.priced[i].op.outputs
            if graph.priced[i].op.phase is phase
        }  # fmt: skip
        read = {spec.memory for spec in graph.outputs}
        for i, p in enumerate(graph.priced):
            if i not in self.members and p.costs and p.op.phase is phase:
                read |= {spec.memory for spec in p.op.inputs}
        return {memory: spec for memory, spec in specs.items() if memory in self.made and memory in read}


def batched(graph: Graph) -> Iterator[Mixture]:
    """Mixtures whose weights multiply as a batch, those of as many experts as one."""
    parameters = {spec.memory: spec for spec in graph.weights if spec.role is Role.WEIGHT and len(spec.shape) > 1}
    products: dict[int, list[int]] = {}  # by how many experts
    used: dict[int, set[str]] = {}
    origin = _as_read(graph, set(parameters))
    for i, p in enumerate(graph.priced):
        factor = _expert_factor(p.op, origin)
        if p.op.phase is Phase.FORWARD and factor is not None:
            experts = int(factor.shape[0])
            products.setdefault(experts, []).append(i)
            used.setdefault(experts, set()).add(origin[factor.memory])
    for experts, places in products.items():
        biases = {memory for memory, spec in parameters.items() if int(spec.shape[0]) == experts}
        modules = {parameters[memory].name.rpartition(".")[0] for memory in used[experts]}
        for memory in biases - used[experts]:
            module = parameters[memory].name.rpartition(".")[0]
            if len(parameters[memory].shape) > 2 and module in modules:
                raise every_token(module)
        yield _batched(graph, experts, places, used[experts], biases, origin)


def _expert_factor(op: Op, origin: Mapping[str, str]) -> TensorSpec | None:
    """The weights [experts, …] of a product of tokens with them."""
    if op.kind not in _BATCHED:
        return None
    first, second = _factors(op)
    for spec, other in ((second, first), (first, second)):
        if spec.memory in origin and len(spec.shape) == 3 and other.memory not in origin:
            _check_dispatched(op, other)
            return spec
    return None


def _factors(op: Op) -> tuple[TensorSpec, TensorSpec]:
    first = 1 if op.kind in ("aten.baddbmm", "aten.addmm") else 0
    return op.inputs[first], op.inputs[first + 1]


def _check_dispatched(op: Op, tokens: TensorSpec) -> None:
    if len(tokens.shape) == 3 and tokens.stride is not None and tokens.stride[0] == 0:
        raise every_token(op.module)


def every_token(module: str) -> InputError:
    """What is said of experts that all compute all tokens."""
    return InputError(
        f"{module or 'the model'}: every expert computes every token, so that nothing is dispatched to experts on "
        "other devices; give each expert its own rows (a buffer with a capacity, or torch._grouped_mm)"
    )


def tokens_of(op: Op, weights: set[str]) -> str:
    """Which size of a product counts tokens: "m", "n", or "k" where it multiplies no weights."""
    first, second = _factors(op)
    return "m" if second.memory in weights else "n" if first.memory in weights else "k"


def _as_read(graph: Graph, parameters: set[str]) -> dict[str, str]:
    """Memory of parameters and of what casts and copies make of them, in every phase that reads them."""

    def copied(p: PricedOp) -> bool:
        return bool(p.costs) and p.op.phase is not Phase.OPTIMIZER and is_elementwise(p)

    return copies_of(graph, parameters, copied)


def _batched(
    graph: Graph, experts: int, products: list[int], used: set[str], biases: set[str], origin: Mapping[str, str]
) -> Mixture:
    found = Mixture(count=experts, weights=set(), members=dict.fromkeys(products))
    found.made = {spec.memory for i in products for spec in graph.priced[i].op.outputs}
    used = used | _grow(graph, found, Phase.FORWARD, lambda op: {s.memory for s in op.inputs} & biases)
    own = used | belonging_to(graph, used)
    found.weights = own | {memory for memory, parameter in origin.items() if parameter in used}
    for i, p in enumerate(graph.priced):
        made = {spec.memory for spec in p.op.outputs}
        read = {spec.memory for spec in p.op.inputs}
        if p.op.phase is not Phase.BACKWARD or not p.costs:
            continue
        if any(cost.gemms for cost in p.costs) and (made & own or read & found.weights):
            found.members[i] = None
            found.made |= made - own
        elif made & own and not read & own:  # of a bias
            found.members[i] = None
    _grow(graph, found, Phase.BACKWARD, lambda op: set())
    return found


def _grow(graph: Graph, found: Mixture, phase: Phase, extra: Callable[[Op], set[str]]) -> set[str]:
    """Takes in what lies between the products of a phase, element by element; what else of weights it reads."""
    between = [
        (i, p) for i, p in enumerate(graph.priced)
        if p.op.phase is phase and p.costs and i not in found.members and is_elementwise(p)
    ]  # fmt: skip
    wanted = {
        spec.memory for i in found.members if graph.priced[i].op.phase is phase for spec in graph.priced[i].op.inputs
    }
    for _, p in reversed(between):
        if any(spec.memory in wanted for spec in p.op.outputs):
            wanted |= {spec.memory for spec in p.op.inputs}
    biases: set[str] = set()
    for i, p in between:
        read = [spec.memory for spec in p.op.inputs if int(spec.numel) > 1]
        own = [memory for memory in read if memory in found.made]
        sums = phase is Phase.BACKWARD and len(own) == len(read) > 1  # gradients by several ways
        if own and (extra(p.op) or sums or any(spec.memory in wanted for spec in p.op.outputs)):
            biases |= extra(p.op)
            found.members[i] = None
            found.made |= {spec.memory for spec in p.op.outputs}
    return biases


# --- modules in a list -------------------------------------------------------------------------------------------


def listed(graph: Graph) -> Iterator[Mixture]:
    """Mixtures of equal modules that each take their own rows, all of them there before the first module is called."""
    owners = owners_of(graph, {spec.memory for spec in graph.weights if spec.role is Role.WEIGHT})
    for path, ops in _numbered(graph).items():
        if len(ops) < 2:
            continue
        forward = {k: [i for i in places if _is_forward(graph.priced[i])] for k, places in ops.items()}
        if not all(forward.values()) or len({_signature(graph, path, k, forward[k]) for k in forward}) > 1:
            continue
        members: dict[int, int | None] = {i: k for k, places in enumerate(ops.values()) for i in places}
        if _is_a_chain(graph, members):
            continue
        found = _listed(graph, path, members, owners)
        first = min(min(places) for places in forward.values())
        sources = {spec.memory: spec for i, spec in found.enter(graph) if _is_forward(graph.priced[i])}
        made = {s.memory for p in graph.priced[:first] for s in p.op.outputs} | {s.memory for s in graph.inputs}
        if found.weights and sources and set(sources) <= made and _takes_parts(graph, found):
            yield found


def _is_forward(p: PricedOp) -> bool:
    return p.op.phase is Phase.FORWARD and bool(p.costs)


def _numbered(graph: Graph) -> dict[str, dict[int, list[int]]]:
    """Places of ops by a path with numbers below it, and the number."""
    found: dict[str, dict[int, list[int]]] = {}
    for i, p in enumerate(graph.priced):
        parts = p.op.module.split(".")
        for k, part in enumerate(parts):
            if part.isdigit() and p.op.phase is not Phase.OPTIMIZER:
                found.setdefault(".".join(parts[:k]), {}).setdefault(int(part), []).append(i)
    return found


def _signature(graph: Graph, path: str, number: int, places: list[int]) -> tuple[object, ...]:
    """What equal modules have in common."""
    own = f"{path}.{number}".lstrip(".")
    ops = [graph.priced[i].op for i in places]
    return tuple((op.module.removeprefix(own), op.kind, tuple(tuple(s.shape) for s in op.inputs)) for op in ops)


def _listed(graph: Graph, path: str, members: dict[int, int | None], owners: Mapping[str, str]) -> Mixture:
    """The mixture of modules at a path; `owners` of all parameters."""
    experts: dict[str, int] = {}  # of the parameters that they read
    for i, expert in members.items():
        read = [spec.memory for spec in graph.priced[i].op.inputs]
        experts |= dict.fromkeys((memory for memory in read if owners.get(memory) == memory), expert or 0)
    own = {memory: experts[weight] for memory, weight in owners.items() if weight in experts}
    costed = [graph.priced[i].op for i in members if graph.priced[i].costs]
    made = {spec.memory for op in costed for spec in op.outputs} - set(own)
    return Mixture(count=1 + max(k or 0 for k in members.values()), weights=set(own), members=members, made=made,
                   path=path, owners=own)  # fmt: skip


def _is_a_chain(graph: Graph, members: Mapping[int, int | None]) -> bool:
    """Whether one of the modules reads what another one has made."""
    makers = {
        spec.memory: k for i, k in members.items() if graph.priced[i].costs for spec in graph.priced[i].op.outputs
    }
    return any(makers.get(spec.memory, k) != k for i, k in members.items() for spec in graph.priced[i].op.inputs)


def _takes_parts(graph: Graph, found: Mixture) -> bool:
    """Whether no rows are read by two of the modules."""
    whole = {spec.memory: int(spec.numel) for p in graph.priced for spec in p.op.outputs if p.costs}
    read: dict[str, dict[int | None, int]] = {}
    for i, spec in found.enter(graph):
        if _is_forward(graph.priced[i]):
            read.setdefault(spec.memory, {})[found.members[i]] = int(spec.numel)
    return all(sum(parts.values()) <= whole.get(memory, 0) for memory, parts in read.items())


def as_one(graph: Graph) -> Graph:
    """The graph with listed experts one after another: after all that they need, before all that needs them."""
    names = [{graph.priced[i].op.name for i in found.members} for found in listed(graph)]
    for members in names:
        for phase in (Phase.FORWARD, Phase.BACKWARD):
            graph = replace(graph, priced=_as_one(graph, members, phase))
    return graph


def _as_one(graph: Graph, members: set[str], phase: Phase) -> tuple[PricedOp, ...]:
    places = [i for i, p in enumerate(graph.priced) if p.op.phase is phase and p.op.name in members]
    if not places:
        return graph.priced
    first, end = places[0], places[-1] + 1
    own = set(places)
    early: list[PricedOp] = []
    late: list[PricedOp] = []
    after = {spec.memory for i in places if graph.priced[i].costs for spec in graph.priced[i].op.outputs}
    for i, p in enumerate(graph.priced[first:end], first):
        if i in own:
            continue
        if any(spec.memory in after for spec in p.op.inputs):
            late.append(p)
            after |= {spec.memory for spec in p.op.outputs}
        else:
            early.append(p)
    experts = [graph.priced[i] for i in places]
    return (*graph.priced[:first], *early, *experts, *late, *graph.priced[end:])
