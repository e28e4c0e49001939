"""The optimizer's step on a GPU's share of the weights, with the norm of the gradients before it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from rooflinekit.cost.table import price_all
from rooflinekit.hardware.host import Host
from rooflinekit.ir.graph import Graph
from rooflinekit.ir.op import DType, Op, Phase, Role, TensorSpec
from rooflinekit.model.energy import under_limits
from rooflinekit.model.kernel import Issue
from rooflinekit.model.kernels import issues_of
from rooflinekit.model.machine import Machine
from rooflinekit.model.roofline import Timing, time_kernels
from rooflinekit.step.energy_together import drawn_by
from rooflinekit.step.issuing import issue_cost_s
from rooflinekit.training.graph import optimizer_ops
from rooflinekit.training.recipe import Recipe

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
    return under_limits(time_kernels([kernel for issue in issues for kernel in issue.kernels], machine), machine)


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
