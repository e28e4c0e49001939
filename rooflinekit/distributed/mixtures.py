"""Mixtures of experts in a graph, found by data and shapes: which ops are experts, and what goes into and out of them.

Two forms are known. Batched: weights [experts, …] that multiply tokens as a batch (`torch.bmm`, of a buffer with as
many rows for each expert) or in groups (`torch._grouped_mm`, of rows sorted by expert). Listed: equal modules under
numbers of one path, of which each takes its own rows of a buffer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import product

from rooflinekit.distributed.records import DDP
from rooflinekit.distributed.replicas import replicated
from rooflinekit.distributed.rewriting import (
    Insertions,
    bytes_of,
    copied,
    copies_of,
    flattened,
    is_elementwise,
    made_by,
    on_tensors,
    owners_of,
    renamed,
    scaled,
    sent_by,
    times,
)
from rooflinekit.errors import InputError
from rooflinekit.ir.cost import Cost
from rooflinekit.ir.graph import Graph
from rooflinekit.ir.op import Op, Phase, PricedOp, Role, TensorSpec, memories
from rooflinekit.ir.sizes import ceil_div

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
        """The tensors that members read and others have made, with their places."""
        standing = memories(graph.weights)
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
        read = memories(graph.outputs)
        for i, p in enumerate(graph.priced):
            if i not in self.members and p.costs and p.op.phase is phase:
                read |= p.op.read
        return {memory: spec for memory, spec in specs.items() if memory in self.made and memory in read}


def batched(graph: Graph) -> Iterator[Mixture]:
    """Mixtures whose weights multiply as a batch, those of as many experts as one."""
    parameters = {spec.memory: spec for spec in graph.weights if spec.role is Role.WEIGHT and len(spec.shape) > 1}
    products: dict[int, list[int]] = {}  # by how many experts
    used: dict[int, set[str]] = {}
    # memory of parameters and of what casts and copies make of them, in every phase that reads them
    origin = copies_of(
        graph, set(parameters), lambda p: bool(p.costs) and p.op.phase is not Phase.OPTIMIZER and is_elementwise(p)
    )
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
            if len(other.shape) == 3 and other.stride is not None and other.stride[0] == 0:
                raise every_token(op.module)
            return spec
    return None


def _factors(op: Op) -> tuple[TensorSpec, TensorSpec]:
    first = 1 if op.kind in ("aten.baddbmm", "aten.addmm") else 0
    return op.inputs[first], op.inputs[first + 1]


def every_token(module: str) -> InputError:
    """The error for experts that all compute all tokens."""
    return InputError(
        f"{module or 'the model'}: every expert computes every token, so that nothing is dispatched to experts on "
        "other devices; give each expert its own rows (a buffer with a capacity, or torch._grouped_mm)"
    )


def _batched(
    graph: Graph, experts: int, products: list[int], used: set[str], biases: set[str], origin: Mapping[str, str]
) -> Mixture:
    found = Mixture(count=experts, weights=set(), members=dict.fromkeys(products))
    found.made = made_by(graph.priced[i] for i in products)
    used = used | _grow(graph, found, Phase.FORWARD, lambda op: op.read & biases)
    own = set(owners_of(graph, used))
    found.weights = own | {memory for memory, parameter in origin.items() if parameter in used}
    for i, p in enumerate(graph.priced):
        made, read = p.op.made, p.op.read
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
    members = [graph.priced[i].op for i in found.members if graph.priced[i].op.phase is phase]
    wanted = {memory for op in members for memory in op.read}
    for _, p in reversed(between):
        if p.op.made & wanted:
            wanted |= p.op.read
    biases: set[str] = set()
    for i, p in between:
        read = [spec.memory for spec in p.op.inputs if int(spec.numel) > 1]
        own = [memory for memory in read if memory in found.made]
        sums = phase is Phase.BACKWARD and len(own) == len(read) > 1  # gradients by several ways
        if own and (extra(p.op) or sums or p.op.made & wanted):
            biases |= extra(p.op)
            found.members[i] = None
            found.made |= p.op.made
    return biases


def listed(graph: Graph) -> Iterator[Mixture]:
    """Mixtures of equal modules that each take their own rows, all of them there before the first module is called."""
    owners = owners_of(graph, memories(graph.learned))
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
        made = made_by(graph.priced[:first]) | memories(graph.inputs)
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
    own = f"{path}.{number}".lstrip(".")
    ops = [graph.priced[i].op for i in places]
    return tuple((op.module.removeprefix(own), op.kind, tuple(tuple(s.shape) for s in op.inputs)) for op in ops)


def _listed(graph: Graph, path: str, members: dict[int, int | None], owners: Mapping[str, str]) -> Mixture:
    experts: dict[str, int] = {}  # of the parameters that they read
    for i, expert in members.items():
        read = graph.priced[i].op.read
        experts |= dict.fromkeys((memory for memory in read if owners.get(memory) == memory), expert or 0)
    own = {memory: experts[weight] for memory, weight in owners.items() if weight in experts}
    made = made_by(graph.priced[i] for i in members if graph.priced[i].costs) - set(own)
    return Mixture(count=1 + max(k or 0 for k in members.values()), weights=set(own), members=members, made=made,
                   path=path, owners=own)  # fmt: skip


def _is_a_chain(graph: Graph, members: Mapping[int, int | None]) -> bool:
    makers = {
        spec.memory: k for i, k in members.items() if graph.priced[i].costs for spec in graph.priced[i].op.outputs
    }
    return any(makers.get(spec.memory, k) != k for i, k in members.items() for spec in graph.priced[i].op.inputs)


def _takes_parts(graph: Graph, found: Mixture) -> bool:
    whole = {spec.memory: int(spec.numel) for p in graph.priced for spec in p.op.outputs if p.costs}
    read: dict[str, dict[int | None, int]] = {}
    for i, spec in found.enter(graph):
        if _is_forward(graph.priced[i]):
            read.setdefault(spec.memory, {})[found.members[i]] = int(spec.numel)
    return all(sum(parts.values()) <= whole.get(memory, 0) for memory, parts in read.items())


def as_one(graph: Graph) -> Graph:
    """The graph with listed experts one after another: after all that they need, before all that needs them."""
    names = [{graph.priced[i].op.name for i in found.members} for found in listed(graph)]
    for members, phase in product(names, (Phase.FORWARD, Phase.BACKWARD)):
        places = [i for i, p in enumerate(graph.priced) if p.op.phase is phase and p.op.name in members]
        if not places:
            continue
        first, end, own = places[0], places[-1] + 1, set(places)
        experts = [graph.priced[i] for i in places]
        early: list[PricedOp] = []
        late: list[PricedOp] = []
        after = made_by(p for p in experts if p.costs)
        for p in (graph.priced[i] for i in range(first, end) if i not in own):
            if p.op.read & after:
                late.append(p)
                after |= p.op.made
            else:
                early.append(p)
        graph = replace(graph, priced=(*graph.priced[:first], *early, *experts, *late, *graph.priced[end:]))
    return graph


# Expert parallelism: the devices of a group of copies share out the experts of their mixtures.
#
# Each device keeps experts/e of them, and computes the tokens of all e devices that go there: products of an e-th of
# the batch and e times the rows, so as many FLOP, and an e-th of the weights, their gradients and the optimizer's
# state. Four all-to-alls a mixture: tokens go to their experts and come back, in forward, and so do their gradients.
# Where a device has several experts, rows that come device by device are put expert by expert, and back: a copy each
# way.
#
# All devices are taken as the fullest one, where loads are stated to differ.


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """The part of a layer of experts that one device of their group runs."""

    graph: Graph
    gradients: frozenset[str]  # memory of those of experts


def spread(graph: Graph, parts: int, imbalance: float = 1.0) -> Spread:
    """What each of so many devices runs. imbalance: tokens of the fullest one, over the mean.

    Raises InputError without experts, and for experts that cannot be shared out.
    """
    if parts == 1:
        return Spread(graph=graph, gradients=frozenset())
    graph = as_one(graph)
    found = [*batched(graph), *listed(graph)]
    if not found:
        raise InputError(
            f"{graph.name}: no experts to share out: expected weights [experts, …] that multiply tokens as a batch "
            "(torch.bmm, torch._grouped_mm), or equal modules in a list that each take their part of a buffer"
        )
    for mixture in found:
        if mixture.count % parts:
            where = mixture.path or graph.name
            raise InputError(f"{where}: {mixture.count} experts cannot be shared out to {parts} devices")
    load = Fraction(imbalance).limit_denominator(10**6)
    return _Spreading(graph=graph, parts=parts, load=load, mixtures=found).result()


def agreed(graph: Graph, ddp: DDP, copies: int, experts: int, own: frozenset[str]) -> Graph:
    """Gradients of experts reduced among the devices that have the same ones, all others among all copies."""
    if not own:
        return replicated(graph, ddp, copies)
    apart = tuple(spec for spec in graph.gradients if spec.memory in own)
    shared = tuple(spec for spec in graph.gradients if spec.memory not in own)
    found = replicated(replace(graph, gradients=shared), ddp, copies)
    both = replicated(replace(found, gradients=apart), ddp, copies // experts, group="expert data")
    return replace(both, gradients=(*found.gradients, *both.gradients))


@dataclass(slots=True, kw_only=True)
class _Spreading:
    graph: Graph
    parts: int
    load: Fraction
    mixtures: Sequence[Mixture]
    put: Insertions = field(default_factory=Insertions)
    arrived: dict[str, TensorSpec] = field(default_factory=dict)  # by memory of what experts read
    since: dict[str, int] = field(default_factory=dict)  # places from which on that is there
    returned: dict[str, TensorSpec] = field(default_factory=dict)  # by memory of what experts give
    back: dict[str, int] = field(default_factory=dict)  # places after which that is there
    gone: set[str] = field(default_factory=set)  # what experts of other devices make and keep

    def result(self) -> Spread:
        for mixture in self.mixtures:
            for phase in (Phase.FORWARD, Phase.BACKWARD):
                self._dispatch(mixture, phase)
                self._combine(mixture, phase)
        self.gone = {
            memory for one in self.mixtures for i, expert in one.members.items()
            if (expert or 0) >= one.count // self.parts for memory in self.graph.priced[i].op.made & one.made
        } - set(self.returned)  # fmt: skip
        weights, gradients = (
            tuple(filter(None, map(self._own, specs))) for specs in (self.graph.weights, self.graph.gradients)
        )
        changed = [self._op(i, p) for i, p in enumerate(self.graph.priced)]
        graph = self.put.into(replace(self.graph, weights=weights, gradients=gradients), changed)
        experts = {memory for mixture in self.mixtures for memory in mixture.weights}
        return Spread(graph=graph, gradients=frozenset(memories(graph.gradients) & experts))

    def _dispatch(self, mixture: Mixture, phase: Phase) -> None:
        """Tokens, or gradients, to their experts: those of a buffer at once, those of listed modules all at once."""
        sent: dict[str, tuple[int, dict[int | None, TensorSpec]]] = {}
        for i, spec in mixture.enter(self.graph):
            if self.graph.priced[i].op.phase is phase and (spec.memory not in self.arrived or spec.memory in sent):
                sent.setdefault(spec.memory, (i, {}))[1].setdefault(mixture.members[i], spec)
        kept = mixture.count // self.parts
        for group in [list(sent)] if mixture.path and sent else [[memory] for memory in sent]:
            place = min(sent[memory][0] for memory in group)
            whole: list[TensorSpec] = []
            for memory in group:
                read = sent[memory][1]
                own = [spec for expert, spec in read.items() if expert is None or expert < kept]
                share = self.load * (self.parts if mixture.path else 1)
                size = sum(int(spec.numel) for spec in own)
                self.arrived[memory] = flattened(next(iter(read.values())), times(size, share), f"{memory} arrived")
                self.since[memory] = place
                whole += [replace(spec, storage=memory) for spec in read.values()]
            there = [self.arrived[memory] for memory in group]
            self.put.before[place] += self._exchange(place, f"{group[0]} to experts", whole, there, phase, kept)

    def _combine(self, mixture: Mixture, phase: Phase) -> None:
        given = mixture.leave(self.graph, phase)
        makers = {s.memory: i for i in sorted(mixture.members) for s in self.graph.priced[i].op.outputs}
        kept = mixture.count // self.parts
        for group in [list(given)] if mixture.path and given else [[memory] for memory in given]:
            place = max(makers[memory] for memory in group)
            for memory in group:
                self.back[memory] = place
                self.returned[memory] = replace(given[memory], name=f"{memory} returned", storage="")
            here = [
                self._tokens(mixture, given[memory]) for memory in group
                if (mixture.members[makers[memory]] or 0) < kept
            ]  # fmt: skip
            there = [self.returned[memory] for memory in group]
            ops = self._exchange(place, f"{group[0]} from experts", here, there, phase, kept)
            self.put.after[place] += ops

    def _exchange(
        self, place: int, key: str, sent: Sequence[TensorSpec], there: Sequence[TensorSpec], phase: Phase, kept: int
    ) -> list[PricedOp]:
        """An all-to-all, with a copy on the experts' side where rows of several of them lie device by device."""
        size = max(bytes_of(sent), bytes_of(there))
        op = replace(self.graph.priced[place].op, phase=phase)
        to_experts = key.endswith("to experts")
        experts = there if to_experts else sent
        moved = flattened(experts[0], ceil_div(size, experts[0].dtype.itemsize), f"{key}, device by device")
        if kept == 1:
            return [sent_by(op, key, "all-to-all", "expert", sent, there)]
        if to_experts:
            send = sent_by(op, key, "all-to-all", "expert", sent, [moved], size_bytes=size)
            return [send, copied(f"{key}, expert by expert", [moved], there, phase, op.module)]
        send = sent_by(op, key, "all-to-all", "expert", [moved], there, size_bytes=size)
        return [copied(f"{key}, sorted", sent, [moved], phase, op.module), send]

    def _op(self, i: int, p: PricedOp) -> PricedOp | None:
        """An op as a device runs it; None for one of another device's experts."""
        mixture = next((one for one in self.mixtures if i in one.members), None)
        if mixture is not None:
            expert = mixture.members[i]
            gone = expert is not None and expert >= mixture.count // self.parts
            return None if gone else self._member(mixture, p)
        if p.op.phase is Phase.OPTIMIZER:
            return self._on_parameters(p)
        if not p.costs and p.op.read & self.gone:
            return None
        if any(p.op.made & one.weights for one in self.mixtures):
            return self._on_parameters(p) if any(map(self._own, p.op.outputs)) else None
        if not p.costs and all(i > self.since.get(spec.memory, i) for spec in p.op.inputs):
            return renamed(p, self.arrived)
        early = not p.costs and any(i <= self.back.get(spec.memory, -1) for spec in p.op.inputs)
        return p if early else renamed(p, self.returned)

    def _own(self, spec: TensorSpec) -> TensorSpec | None:
        """A device's part of a parameter, gradient or state, None for nothing; another tensor as it is."""
        mixture = next((one for one in self.mixtures if spec.memory in one.weights), None)
        if mixture is None or not spec.shape:
            return spec
        if mixture.path:
            return spec if mixture.owners[spec.memory] < mixture.count // self.parts else None
        if int(spec.shape[0]) == mixture.count:
            return replace(spec, shape=(mixture.count // self.parts, *spec.shape[1:]))
        return replace(spec, shape=(ceil_div(int(spec.numel), self.parts),), stride=None)

    def _on_parameters(self, p: PricedOp) -> PricedOp | None:
        """An op on parameters: its work in proportion to their elements. None where a device has nothing of them."""
        found = on_tensors(p, self._own, in_attrs=True)
        if p.op.inputs and not found.op.inputs:
            return None
        before, after = (sum(int(spec.numel) for spec in (op.outputs or op.inputs)) for op in (p.op, found.op))
        return replace(found, costs=scaled(p.costs, Fraction(after, max(1, before))))

    def _member(self, mixture: Mixture, p: PricedOp) -> PricedOp:
        def there(spec: TensorSpec) -> TensorSpec | None:
            own = self._own(spec)
            return None if own is None else self._tokens(mixture, own)

        found = on_tensors(p, there)
        share = self.load * (self.parts if mixture.path else 1)
        costs = tuple(
            self._product(mixture, p.op, found.op, cost) if cost.gemms else scaled([cost], share)[0] for cost in p.costs
        )
        return renamed(replace(found, costs=costs), self.arrived)

    def _tokens(self, mixture: Mixture, spec: TensorSpec) -> TensorSpec:
        """A tensor of tokens, those of all devices: of each of a device's experts as many more rows."""
        if spec.memory not in mixture.made and spec.memory not in self.arrived:
            return spec
        batch = not mixture.path and len(spec.shape) > 2 and int(spec.shape[0]) == mixture.count
        turned = spec.stride is not None and spec.stride[-1] != 1  # a transposed view: rows come last
        shape = [int(size) for size in spec.shape]
        rows = len(shape) - 1 if turned else int(batch)
        shape[rows] = times(shape[rows], self.load * (self.parts if batch or mixture.path else 1))
        if batch:
            shape[0] //= self.parts
        return replace(spec, shape=tuple(shape), stride=spec.stride if turned else None)

    def _product(self, mixture: Mixture, before: Op, after: Op, cost: Cost) -> Cost:
        first, second = _factors(before)  # which size counts tokens: "k" where it multiplies no weights
        size = "m" if second.memory in mixture.weights else "n" if first.memory in mixture.weights else "k"
        gemms = []
        for gemm in cost.gemms:
            own = not mixture.path and int(gemm.batch) == mixture.count
            rows = times(getattr(gemm, size), self.load * (self.parts if own or mixture.path else 1))
            batch = int(gemm.batch) // self.parts if own else gemm.batch
            gemms.append(replace(gemm, batch=batch, needed=None, **{size: rows}))
        vector = self.load * (self.parts if mixture.path else 1)
        return replace(
            cost, gemms=tuple(gemms), vector_flop=times(cost.vector_flop, vector),
            special_flop=times(cost.special_flop, vector),
            read_bytes=int(cost.read_bytes) + _bytes(after.inputs) - _bytes(before.inputs),
            write_bytes=int(cost.write_bytes) + _bytes(after.outputs) - _bytes(before.outputs),
        )  # fmt: skip


def _bytes(specs: Sequence[TensorSpec]) -> int:
    """Bytes of all tensors together, each counted once."""
    return sum(int(spec.bytes) for spec in {spec.name: spec for spec in specs}.values())
