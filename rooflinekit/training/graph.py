"""The graph of a decoder's training step: embedding, layers, loss, their backward, and the optimizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
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
from rooflinekit.training.layout import Layout, Part
from rooflinekit.training.products import GradientTape
from rooflinekit.training.recipe import Recipe, recipe_of


@checked
def training_graph(
    decoder: Decoder, *, batch: int, seq: int, recipe: str | Recipe = "pytorch", optimizer: bool = True
) -> Graph:
    """One training step of a decoder on one GPU: `batch` sequences of `seq` tokens.

    recipe: a name of `rooflinekit.training.recipe.RECIPES`, or a `Recipe`. Raises InputError for another word.
    """
    part = Part(decoder=decoder, layout=Layout(micro_batch=batch), seq=seq)
    return graph_of(part, recipe_of(recipe), optimizer=optimizer)


def graph_of(part: Part, recipe: Recipe, *, optimizer: bool = True) -> Graph:
    """The same of one GPU's part, without what groups send."""
    tape = GradientTape(dtype=recipe.dtype, summed_in=DType.FLOAT32 if recipe.main_gradients else None)
    writer = Layers(part=part, recipe=recipe, tape=tape)
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
        sizes={"batch": part.layout.micro_batch, "seq": part.seq},
        held=MappingProxyType(dict.fromkeys(writer.held, ops[-1].name)),
    )
    return recomputed(graph, recipe, part.decoder.layers)


def recomputed(graph: Graph, recipe: Recipe, layers: int) -> Graph:
    """The step with what its recipe computes again."""
    if recipe.recompute == "none":
        return graph
    part = ".attention.core" if recipe.recompute == "selective" else ""
    return checkpointed(graph, tuple(f"layers.{i}{part}" for i in range(layers)), whole=True)


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
