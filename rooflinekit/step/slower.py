"""Why a step that torch.compile runs takes longer than in eager mode."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rooflinekit.model.fusion import FUSED
from rooflinekit.step.entry import entry_of
from rooflinekit.units import format_quantity

if TYPE_CHECKING:
    from rooflinekit.step.prediction import Prediction

#: How much longer a compiled step takes before a note says so, and the least part of that which is a reason.
_TOLD, _REASON = 0.01, 0.1


def slower_note(compiled: Prediction, eager: Prediction) -> str:
    """That a compiled step takes at least 1 % longer than the eager one, and of what that consists; "" elsewhere."""
    longer_s = compiled.total_s - eager.total_s
    if longer_s <= _TOLD * eager.total_s:
        return ""
    reasons = ", and ".join(_reasons(compiled, eager, _REASON * longer_s))
    slower = f"{compiled.total_s / eager.total_s:.3g}× as long as eager ({_time(eager.total_s)})"
    return f"{compiled.execution.backend} on {compiled.machine.name}: {slower}: {reasons}"


def _reasons(compiled: Prediction, eager: Prediction, least_s: float) -> Iterator[str]:
    waits_s, kernels_s = compiled.terms()["overhead"] - eager.terms()["overhead"], compiled.gpu_s - eager.gpu_s
    if waits_s > least_s:
        entry = entry_of(compiled.host, compiled.execution, compiled.graph)
        around_s = entry.enter_s + entry.replay_s + entry.leave_s
        launches = (
            f" and {_time(compiled.host.compiled_launch)} for a Triton kernel" if compiled.execution.fused else ""
        )
        yield (
            f"kernels wait {_time(waits_s)} longer for the CPU, which takes {_time(around_s)} to enter the "
            f"step{launches}"
        )
    if kernels_s > least_s:
        yield f"kernels take {_time(kernels_s)} longer{_by_which(compiled)}"


def _by_which(compiled: Prediction) -> str:
    """The longest kernel that torch.compile has made; first of those that eager mode has nothing like."""
    made = [timing for timing in compiled.timings if timing.kernel.kind.startswith(f"{FUSED}.")]
    if not made:
        return ""
    longest = max(made, key=lambda timing: ("(" in timing.kernel.name, timing.total_s))
    return f", as {longest.kernel.name}: {_time(longest.total_s)}"


def _time(seconds: float) -> str:
    return format_quantity(seconds, "s")
