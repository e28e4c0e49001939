"""The graph of a decoder's training step: embedding, layers, loss, their backward, and the optimizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from types import MappingProxyType

from rooflinekit.cost.table import price_all
from rooflinekit.hardware.host import Host
from rooflinekit.ir.arguments import checked
from rooflinekit.ir.graph import Graph
from rooflinekit.ir.op import DType, Op, Phase, Role, TensorSpec
from rooflinekit.model.kernel import Issue
from rooflinekit.model.kernels import issues_of
from rooflinekit.model.machine import Machine
from rooflinekit.model.timing import Timing, time_kernels
from rooflinekit.serving.decoder import Decoder
from rooflinekit.step.energy import drawn_by
from rooflinekit.step.entry import issue_cost_s
from rooflinekit.strategies.saving import checkpointed
from rooflinekit.training.layers import Layers
from rooflinekit.training.layout import Part
from rooflinekit.training.products import GradientTape
from rooflinekit.training.recipe import Recipe, recipe_of


@checked
def training_graph(
    decoder: Decoder, *, batch: int, seq: int, recipe: str | Recipe = "pytorch", optimizer: bool = True
) -> Graph:
    """One training step of a decoder on one GPU: `batch` sequences of `seq` tokens.

    recipe: a name of `rooflinekit.training.recipe.RECIPES`, or a `Recipe`. Raises InputError for another word.
    """
    part = Part(decoder=decoder, micro_batch=batch, seq=seq)
    return graph_of(part, recipe_of(recipe), optimizer=optimizer)


def graph_of(part: Part, recipe: Recipe, *, optimizer: bool = True) -> Graph:
    """The same of one GPU's part, without what groups send."""
    tape = GradientTape(dtype=recipe.dtype, summed_in=DType.FLOAT32 if recipe.main_gradients else None)
    writer = _Writer(part=part, recipe=recipe, tape=tape)
    ids, loss = writer.step()
    ops = list(tape.ops)
    if optimizer:
        ops += optimizer_ops(tuple(tape.weights.values()), tuple(tape.main.values()), recipe)
    graph = Graph(
        name=f"{part.decoder.name} training",
        mode="training",
        inputs=(ids,),
        weights=tuple(tape.weights.values()),
        outputs=(loss,),
        gradients=tuple(tape.main.values()),
        priced=price_all(ops),
        sizes={"batch": part.micro_batch, "seq": part.seq},
        held=MappingProxyType(dict.fromkeys(writer.held, ops[-1].name)),
    )
    return recomputed(graph, recipe, part.decoder.layers)


def recomputed(graph: Graph, recipe: Recipe, layers: int) -> Graph:
    """The step with what its recipe computes again."""
    if recipe.recompute == "none":
        return graph
    part = ".attention.core" if recipe.recompute == "selective" else ""
    return checkpointed(graph, tuple(f"layers.{i}{part}" for i in range(layers)), whole=True)


@dataclass(slots=True, kw_only=True)
class _Writer(Layers):
    """Layers, and what stands before and behind them."""

    held: list[str] = field(default_factory=list)  # memory that Python keeps: the output of an eager model

    def step(self) -> tuple[TensorSpec, TensorSpec]:
        """All of forward and backward; the tokens, and the loss."""
        d, part, tape = self.part.decoder, self.part, self.tape
        shape = (part.micro_batch, part.seq // part.context)
        ids = TensorSpec(name="ids", shape=shape, dtype=DType.INT64, role=Role.INPUT)
        x = self._embedded(ids)
        for i in range(d.layers):
            x = self.layer(f"layers.{i}", x)
        tape.module = "norm"
        x = self.norm(x, d.hidden)
        loss = self._loss(x, ids)
        tape.backward()
        return ids, loss

    def _embedded(self, ids: TensorSpec) -> TensorSpec:
        d, part, tape = self.part.decoder, self.part, self.tape
        tape.module = "embedding"
        table = tape.weight("weight", part.vocab, d.hidden)
        flat = TensorSpec(name="ids.flat", shape=(part.rows,), dtype=DType.INT64, storage="ids", role=Role.INPUT)
        x = tape.run("aten.embedding", (table, flat), tape.new(part.rows, d.hidden))
        if d.positions == "learned":
            where = tape.weight("positions", d.max_positions or part.seq, d.hidden)
            x = tape.run("aten.add", (x, where), tape.new(part.rows, d.hidden), alpha=1)

        @tape.behind(x)
        def back(g: TensorSpec) -> None:
            target = tape.main[table.name]
            made = tape.run("aten.embedding_dense_backward", (g, flat), tape.like(table))
            if d.tied or self.recipe.main_gradients:
                tape.run("aten.add_", (target, made), target, alpha=1)
            if d.positions == "learned":
                tape.run("aten.sum", (g,), tape.main[where.name], dim=[0], keepdim=True)

        return self.dropped(x) if self.recipe.dropout else x

    def _loss(self, x: TensorSpec, ids: TensorSpec) -> TensorSpec:
        d, part, tape = self.part.decoder, self.part, self.tape
        tape.module = "head"
        self.part = replace(part, decoder=replace(d, bias=False))
        logits = self._tied(x) if d.tied else self.linear(x, "out", part.vocab)
        self.part = part
        labels = TensorSpec(name="labels", shape=(part.tokens,), dtype=DType.INT64, storage="ids", role=Role.INPUT)
        return self._megatron_loss(logits, labels) if self.recipe.fused else self._plain_loss(logits, labels)

    def _tied(self, x: TensorSpec) -> TensorSpec:
        """The product with the embedding's own table."""
        tape = self.tape
        shared, own = tape.weights["embedding.weight"], tape.main["embedding.weight"]
        tape.weights["head.out.weight"], tape.main["head.out.weight"] = shared, own
        y = self.linear(x, "out", self.part.vocab)
        del tape.weights["head.out.weight"], tape.main["head.out.weight"]
        return y

    def _plain_loss(self, logits: TensorSpec, labels: TensorSpec) -> TensorSpec:
        tape, recipe, (n, v) = self.tape, self.recipe, logits.shape
        tape.module = "loss"
        self.held.append(logits.memory)
        wide = DType.FLOAT32 if recipe.autocast else recipe.dtype
        x = logits
        if recipe.autocast:
            x = tape.run("aten._to_copy", (logits,), tape.new(n, v, dtype=wide), dtype=wide)
        p = tape.run("aten._log_softmax", (x,), tape.new(n, v, dtype=wide), dim=1, half_to_float=False)
        loss = TensorSpec(name="loss", shape=(), dtype=wide)
        count = TensorSpec(name="loss.count", shape=(), dtype=wide)
        given = {"weight": None, "reduction": 1, "ignore_index": -100}
        tape.run("aten.nll_loss_forward", (p, labels), loss, count, **given)

        @tape.later
        def back() -> None:
            gp = tape.run("aten.nll_loss_backward", (loss, p, labels, count), tape.like(p, wide), **given)
            g = tape.run("aten._log_softmax_backward_data", (gp, p), tape.like(p, wide), dim=1, input_dtype=wide)
            if recipe.autocast:
                g = tape.run("aten._to_copy", (g,), tape.new(n, v), dtype=recipe.dtype)
            tape.give(logits, g)

        return loss

    def _megatron_loss(self, logits: TensorSpec, labels: TensorSpec) -> TensorSpec:
        """In fp32 over the parts of the vocabulary: largest, difference, exp and sum, quotient; in place backward."""
        tape, (n, v) = self.tape, logits.shape
        tape.module = "loss"
        wide = DType.FLOAT32
        x = tape.run("aten._to_copy", (logits,), tape.new(n, v, dtype=wide), dtype=wide)
        top = tape.run("aten.amax", (x,), tape.new(n, 1, dtype=wide), dim=[-1], keepdim=False)
        tape.run("aten.sub_", (x, top), x, alpha=1)
        tape.run("aten.exp", (x,), x)
        sums = tape.run("aten.sum", (x,), tape.new(n, 1, dtype=wide), dim=[-1], keepdim=False)
        tape.run("aten.div_", (x, sums), x)
        loss = TensorSpec(name="loss", shape=(), dtype=wide)
        tape.run("aten.mean", (sums,), loss, dim=None)

        @tape.later
        def back() -> None:
            tape.run("aten.mul_", (x, sums), x)
            tape.give(logits, tape.run("aten._to_copy", (x,), tape.new(n, v), dtype=self.recipe.dtype))

        return loss


def optimizer_ops(weights: tuple[TensorSpec, ...], gradients: tuple[TensorSpec, ...], recipe: Recipe) -> list[Op]:
    """Adam on these: one kernel, or PyTorch's eight multi-tensor ones; with fp32 weights where the recipe has them."""
    found: list[Op] = []
    wide = DType.FLOAT32 if recipe.master else None

    def like(specs: tuple[TensorSpec, ...], mark: str) -> tuple[TensorSpec, ...]:
        return tuple(
            replace(s, name=f"{s.name}{mark}", dtype=wide or s.dtype, role=Role.STATE, storage="") for s in specs
        )

    own = like(weights, ".main") if recipe.master else weights
    means, squares = like(weights, ".m"), like(weights, ".v")

    def run(kind: str, inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...], **attrs: object) -> None:
        found.append(
            Op(
                name=f"{kind}_{len(found)}", kind=f"aten.{kind}", phase=Phase.OPTIMIZER, inputs=inputs, outputs=outputs,
                attrs=attrs,
            )
        )  # fmt: skip

    if recipe.optimizer == "fused":
        run(
            "_fused_adamw_", (*own, *gradients, *means, *squares), (*own, *means, *squares), self=own, grads=gradients,
            exp_avgs=means, exp_avg_sqs=squares, max_exp_avg_sqs=(), weight_decay=0.1, amsgrad=False, maximize=False,
        )  # fmt: skip
    else:
        run("_foreach_mul_", own, own)
        run("_foreach_lerp_", (*means, *gradients), means)
        run("_foreach_mul_", squares, squares)
        run("_foreach_addcmul_", (*squares, *gradients), squares, value=0.001)
        roots = like(weights, ".root")
        run("_foreach_sqrt", squares, roots)
        run("_foreach_div_", roots, roots)
        run("_foreach_add_", roots, roots)
        run("_foreach_addcdiv_", (*own, *means, *roots), own, scalars=())
    if recipe.master:
        run("_foreach_copy_", (*weights, *own), weights)
    return found


# The optimizer's step on a GPU's share of the weights, with the norm of the gradients before it.


#: Numbers for which the step is timed: traffic of the memory grows in proportion from there on.
_TIMED = 2**26


def update_s(numbers: float, recipe: Recipe, machine: Machine, host: Host) -> float:
    """Seconds for so many weights: the gradients' norm, their clipping, and Adam."""
    issues = _issues(recipe)
    gpu_s, cpu_s = sum(t.total_s for t in _timings(issues, machine)), sum(issue_cost_s(i, host) for i in issues)
    return max(gpu_s * numbers / _TIMED, cpu_s + host.step)


def update_j(numbers: float, recipe: Recipe, machine: Machine) -> Mapping[str, float] | None:
    """Joules by part, beside idling, of the same; None where no power is stated."""
    drawn = drawn_by(_timings(_issues(recipe), machine), machine)
    return None if drawn is None else {name: j * numbers / _TIMED for name, j in drawn.items()}


def _timings(issues: Sequence[Issue], machine: Machine) -> tuple[Timing, ...]:
    return time_kernels([kernel for issue in issues for kernel in issue.kernels], machine)


@lru_cache(maxsize=64)
def _issues(recipe: Recipe) -> tuple[Issue, ...]:
    wide = DType.FLOAT32 if recipe.main_gradients or recipe.autocast else recipe.dtype
    weight = TensorSpec(name="w", shape=(_TIMED,), dtype=recipe.dtype, role=Role.WEIGHT)
    gradient = TensorSpec(name="g", shape=(_TIMED,), dtype=wide, role=Role.GRADIENT)
    norm = TensorSpec(name="norm", shape=(), dtype=wide)
    ops = [
        Op(name="norm", kind="aten._foreach_norm", phase=Phase.OPTIMIZER, inputs=(gradient,), outputs=(norm,)),
        Op(name="clip", kind="aten._foreach_mul_", phase=Phase.OPTIMIZER, inputs=(gradient,), outputs=(gradient,)),
        *optimizer_ops((weight,), (gradient,), recipe),
    ]
    graph = Graph(
        name="optimizer", mode="training", inputs=(), weights=(weight,), outputs=(), priced=price_all(ops)
    )  # fmt: skip
    return tuple(issues_of(graph))
