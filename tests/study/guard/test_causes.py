"""A change is blamed on where it begins, and not on what follows it, however much longer that takes."""

import copy
import random

import pytest
from torch import nn

import rooflinekit as rk
from rooflinekit.step.prediction import Prediction
from rooflinekit.study.guard.check import causes_of

GPU = "nvidia-l4"


class Net(nn.Module):
    def __init__(self, width: int = 64, last: int = 8, *, extra: bool = False) -> None:
        super().__init__()
        self.up = nn.Linear(16, width)
        self.wide = nn.Linear(width, 4096)  # costs far more than `up` where that becomes wider
        self.extra = nn.LayerNorm(4096) if extra else nn.Identity()
        self.down = nn.Linear(4096, last)

    def forward(self, x):
        return self.down(self.extra(self.wide(self.up(x)).relu()))


def predicted(net: nn.Module, **options: object) -> Prediction:
    return rk.predict(net, rk.Input(4096, 16), gpu=GPU, **options)


def blamed(before: Prediction, now: Prediction) -> list[str]:
    return [cause.module for cause in causes_of(before, now)]


@pytest.mark.parametrize("options", [{}, {"mode": "training"}, {"execution": "compiled"}], ids=str)
def test_a_wider_layer_is_blamed_and_not_the_one_after_it(options: dict[str, object]) -> None:
    before, now = predicted(Net(), **options), predicted(Net(width=512), **options)
    assert blamed(before, now) == ["up"]
    (cause,) = causes_of(before, now)
    assert cause.following_s > cause.delta_s > 0
    assert now.gpu_s - before.gpu_s == pytest.approx(cause.all_s, rel=0.05)  # the rest is waiting for the CPU


def test_two_changes_are_two_causes_the_larger_first() -> None:
    assert blamed(predicted(Net()), predicted(Net(width=512, last=9))) == ["up", "down"]


def test_what_is_new_and_what_is_gone() -> None:
    without, with_extra = predicted(Net()), predicted(Net(extra=True))
    (new,), (gone,) = causes_of(without, with_extra), causes_of(with_extra, without)
    assert new.module == gone.module == "extra"
    assert new.delta_s == pytest.approx(-gone.delta_s)
    assert new.delta_s > 0
    assert gone.what.endswith("is gone")


def test_nothing_changed_nothing_is_blamed() -> None:
    assert causes_of(predicted(Net()), predicted(Net())) == ()


# --- timm's networks -------------------------------------------------------------------------------------------------

NETWORKS = ("resnet18", "resnet50", "vit_tiny_patch16_224", "mixer_s16_224", "convnext_atto")


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["inference", "training"])
@pytest.mark.parametrize("name", NETWORKS)
def test_random_edits_of_known_networks(name: str, mode: str) -> None:
    """Two edits of each network in each mode, twenty in all: each is blamed on the layer that was made wider."""
    from rooflinekit.tracing.targets import load_target

    rng, model = random.Random(f"{name} {mode}"), load_target(f"timm:{name}").model
    x = rk.Input(2, 3, 224, 224)
    before = rk.predict(model, x, gpu=GPU, mode=mode)
    for layer, readers in rng.sample(sorted(pairs(model)), 2):
        more = rng.choice((-8, 8, 64))
        now = rk.predict(wider(model, layer, readers, more), x, gpu=GPU, mode=mode)
        assert set(blamed(before, now)) == {layer}, more


def pairs(model: nn.Module) -> list[tuple[str, tuple[str, ...]]]:
    """Layers whose width is theirs to choose, with the layers that read them."""
    modules = dict(model.named_modules())
    found: list[tuple[str, tuple[str, ...]]] = []
    for name, module in modules.items():
        if hasattr(module, "fc1"):
            found.append((f"{name}.fc1", (f"{name}.fc2",)))
        elif name and all(hasattr(module, part) for part in ("conv1", "bn1", "conv2")):
            found.append((f"{name}.conv1", (f"{name}.bn1", f"{name}.conv2")))
    head = [name for name, module in modules.items() if isinstance(module, nn.Linear)][-1]
    return [*found, *([] if head.endswith("fc2") else [(head, ())])]


def wider(model: nn.Module, layer: str, readers: tuple[str, ...], more: int) -> nn.Module:
    """A copy in which a layer has `more` outputs, and those who read it take them."""
    model = copy.deepcopy(model)
    one = model.get_submodule(layer)
    width = (one.out_features if isinstance(one, nn.Linear) else one.out_channels) + more
    for name in (layer, *readers):
        own = model.get_submodule(name)
        put(model, name, resized(own, width) if name == layer else resized(own, None, width))
    return model


def resized(own: nn.Module, out: int | None, into: int | None = None) -> nn.Module:
    bias = getattr(own, "bias", None) is not None
    if isinstance(own, nn.Linear):
        return nn.Linear(into or own.in_features, out or own.out_features, bias=bias)
    if isinstance(own, nn.Conv2d):
        sizes = into or own.in_channels, out or own.out_channels
        return nn.Conv2d(*sizes, own.kernel_size, own.stride, own.padding, own.dilation, bias=bias)
    norm, new = nn.BatchNorm2d(into or 0), copy.deepcopy(own)  # timm's own batch norm, with its activation
    new.weight, new.bias, new.running_mean, new.running_var = (
        norm.weight,
        norm.bias,
        norm.running_mean,
        norm.running_var,
    )
    new.num_features = norm.num_features
    return new


def put(model: nn.Module, name: str, new: nn.Module) -> None:
    parent, _, last = name.rpartition(".")
    setattr(model.get_submodule(parent), last, new)
