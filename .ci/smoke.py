"""Is everything in the wheel? Run outside the checkout, with the number of specification files to expect."""

import sys
from pathlib import Path

from torch import nn

import rooflinekit as rk


class Net(nn.Sequential):
    """Small, and all that a smoke test needs."""

    def __init__(self) -> None:
        super().__init__(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 32 * 32, 10))


def main() -> None:
    """Traces, predicts and draws."""
    installed = Path(rk.__file__).parent
    assert "site-packages" in installed.parts, installed
    specs = list((installed / "_data" / "gpu_specs").rglob("*.yaml"))
    assert len(specs) == int(sys.argv[1]), (len(specs), sys.argv[1])
    assert (installed / "py.typed").is_file()

    graph = rk.trace(Net(), rk.Input("batch", 3, 32, 32))
    # 32·32 pixels · 8 channels · 3·3·3 window, and 8192 · 10, 2 FLOP each
    assert graph.at(batch=1).matrix_flop == 2 * (32 * 32 * 8 * 27 + 8192 * 10), graph.matrix_flop
    prediction = rk.predict(graph, "nvidia-a100-sxm4-80gb", batch=4)
    assert 0 < prediction.gpu_s < prediction.total_s
    rk.plot.save(rk.plot.roofline(prediction), "roofline.svg")
    assert Path("roofline.svg").stat().st_size > 1000


if __name__ == "__main__":
    main()
