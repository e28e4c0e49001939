"""A compiled step takes no longer than the eager one, or its notes say by what: the cost of entering, or kernels."""

import pytest
from networks import BATCHES, GPUS, network
from torch import nn

import rooflinekit as rk
from rooflinekit.hardware.host import Host
from rooflinekit.step.entry import entry_of


def told(p: rk.Prediction) -> str:
    (note,) = [note for note in p.notes if "as long as eager" in note] or [""]
    return note


@pytest.mark.parametrize("seed", range(40))
def test_compiled_is_no_slower_unless_notes_say_so(seed: int) -> None:
    graph, random = network(seed)
    gpu, batch = random.choice(GPUS), random.choice(BATCHES)
    eager, compiled = (rk.predict(graph, gpu, batch=batch, execution=way) for way in ("eager", "compiled"))
    assert not told(eager)
    assert bool(told(compiled)) == (compiled.total_s > 1.01 * eager.total_s)
    made = [timing for timing in compiled.timings if timing.kernel.kind.startswith("inductor.")]
    beside = sum(timing.total_s for timing in made if "(" in timing.kernel.name)  # copies of layouts, second stages
    if not any("channels last" in note for note in compiled.notes):  # in which kernels run across the order of memory
        assert compiled.gpu_s - beside <= 1.005 * eager.gpu_s
    host = compiled.host
    assert compiled.cpu_s <= (
        eager.cpu_s + entry_of(host, compiled.execution, compiled.graph).enter_s + len(made) * host.compiled_launch
    )
    if compiled.gpu_s <= eager.gpu_s and told(compiled):
        assert "to enter the step" in told(compiled)
        assert "kernels take" not in told(compiled)


def test_the_note_says_what_entering_takes(host: Host) -> None:
    """A lone product: 2 weights and an input are guarded, 30 + 3·5 µs; all else is as in eager mode."""
    step = rk.trace(nn.Linear(64, 64), rk.Input(8, 64))
    slow = host.replace(guard=5e-6)
    note = told(rk.predict(step, "nvidia-l4", host=slow, execution="compiled"))
    assert "which takes 45.0 µs to enter the step" in note
    assert "kernels take" not in note


def test_the_note_names_the_kernel_that_takes_longer() -> None:
    """Inductor turns the images of a lone depthwise convolution to channels last and back, eager mode neither."""
    step = rk.trace(nn.Conv2d(128, 128, 3, padding=1, groups=128), rk.Input(512, 128, 28, 28))
    note = told(rk.predict(step, "nvidia-l4", execution="compiled"))
    assert "kernels take" in note
    assert "as triton_poi_fused_convolution (arg_0 to channels last):" in note
    # on AMD's GPUs it leaves layouts as they are (torch/_inductor/config.py, layout_opt_default)
    names = rk.predict(step, "amd-mi300x", execution="compiled").by_kernel().index
    assert not any("channels last" in name for name in names)
