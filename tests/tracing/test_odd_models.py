"""Whatever a model does in a trace, and however it fails: the model, torch and the process are as before."""

from __future__ import annotations

import functools
import random
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NoReturn

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.nn import functional
from torch.nn.modules import module as torch_modules
from torch.nn.utils import parametrizations, parametrize

import rooflinekit as rk
from rooflinekit.errors import TraceError


def step(mode: str) -> dict[str, Any]:
    return {"mode": mode, **({"optimizer": torch.optim.SGD} if mode == "training" else {})}


def fakes_below(thing: Any, seen: set[int] | None = None) -> list[Any]:
    """Fake tensors that can be reached from an object, its class and what they hold."""
    seen = set() if seen is None else seen
    if id(thing) in seen or isinstance(thing, type(torch)):
        return []
    seen.add(id(thing))
    if isinstance(thing, FakeTensor):
        return [thing]
    if isinstance(thing, torch.Tensor):
        return fakes_below(thing.grad, seen) if thing.is_leaf else []
    if isinstance(thing, dict):
        held: list[Any] = [value for _, value in dict.items(thing)]
    elif isinstance(thing, list | tuple | set | deque):
        held = [*iter(thing)]
    elif isinstance(thing, nn.Module) or type(thing).__module__ == __name__:
        held = [*vars(type(thing)).values()]
        held += list(object.__getattribute__(thing, "__dict__").values()) if hasattr(thing, "__dict__") else []
        held += [getattr(thing, name, None) for name in getattr(type(thing), "__slots__", ())]
    else:
        return []
    return [fake for value in held for fake in fakes_below(value, seen)]


class Linear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


class Frozen(OrderedDict):  # type: ignore[type-arg]
    """A dict that refuses to be changed, as diffusers' configurations are."""

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError("frozen")

    clear = update = pop = __delitem__ = _refuse  # type: ignore[assignment]

    def __setitem__(self, name: Any, value: Any) -> None:
        if getattr(self, "closed", False):
            raise TypeError("frozen")
        super().__setitem__(name, value)


class Unreadable(dict):  # type: ignore[type-arg]
    def items(self) -> NoReturn:
        raise ValueError("not yours")

    keys = __iter__ = items  # type: ignore[assignment]


class WithFrozen(Linear):
    def __init__(self) -> None:
        super().__init__()
        self.config = Frozen(width=4, depth={"blocks": [1, 2]})
        self.config.closed = True
        self.secret = Unreadable()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Goes around the refusal, and takes a layer away."""
        y = self.layer(x)
        OrderedDict.__setitem__(self.config, "width", y)
        self.config["depth"]["blocks"].append(3)
        del self.layer
        return y


class FrozenParameters(Linear):
    def __init__(self) -> None:
        super().__init__()
        self._parameters = Frozen(scale=nn.Parameter(torch.ones(4)))
        self._parameters.closed = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) * self.scale


class Slots:
    __slots__ = ("absent", "last")

    def __init__(self) -> None:
        self.last = torch.ones(4)


class Store:
    """A cache that is no module."""

    def __init__(self) -> None:
        self.keys: list[torch.Tensor] = []
        self.latest: torch.Tensor | None = None


class Keeper(Linear):
    """Keeps what it computes wherever Python can keep a thing."""

    table: dict[str, Any] = {}  # noqa: RUF012
    newest: Any = None

    def __init__(self) -> None:
        super().__init__()
        self.nested = {"inner": {"list": [torch.ones(4)]}}
        self.by_name: Any = defaultdict(list)
        self.recent: Any = deque(maxlen=3)
        self.all: Any = set()
        self.ordered: Any = OrderedDict(a=1, b=2)
        self.slots, self.store = Slots(), Store()
        self.pairs: Any = ({"seen": {1}}, [])
        self.free = [nn.Parameter(torch.ones(4))]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x) * self.free[0] + self.slots.last
        self.nested["inner"]["list"].append(y)
        self.nested["inner"]["new"] = y
        self.by_name["x"].append(y)
        self.recent.append(y)
        self.all.add(y)
        self.ordered.move_to_end("a")
        self.slots.last = self.slots.absent = self.store.latest = y
        self.store.keys.append(y)
        self.pairs[0]["seen"].add(2)
        self.pairs[1].append(y)
        Keeper.table["x"] = Keeper.newest = y
        Keeper.added = y
        return y


class FailingKeeper(Keeper):
    def forward(self, x: torch.Tensor) -> NoReturn:
        super().forward(x)
        raise RuntimeError("no luck")


GLOBAL: Any = {}
LAST: Any = None


@functools.lru_cache
def positions(count: int) -> torch.Tensor:
    return torch.arange(float(count))


def shifted(x: torch.Tensor) -> torch.Tensor:
    return x + positions(4)


class WithGlobals(Linear):
    @functools.cache  # noqa: B019
    def ones(self) -> torch.Tensor:
        return torch.ones(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        global LAST, NEW
        LAST = NEW = GLOBAL["x"] = shifted(self.layer(x)) * self.ones()  # type: ignore[name-defined]
        return LAST


class Delegating(Linear):
    """Passes every unknown attribute on; raises what `getattr` does not expect."""

    def __getattr__(self, name: str) -> Any:
        modules = self.__dict__.get("_modules", {})
        if name in modules:
            return modules[name]
        raise ValueError(name)


class OwnListing(Linear):
    """Writes the methods that list what is inside anew: groups for an optimizer, or nothing."""

    def parameters(self, recurse: bool = True) -> Any:
        return [{"params": [weight]} for weight in self.layer.parameters()]

    def named_modules(self, *args: Any, **kwargs: Any) -> Any:
        raise ValueError("no")

    modules = named_parameters = named_buffers = named_modules


class NoState(Linear):
    def __setstate__(self, state: Any) -> None:
        raise RuntimeError("no")

    __getstate__ = __reduce__ = __deepcopy__ = __setstate__  # type: ignore[assignment]


class OtherClass(Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.layer.__class__ = nn.Identity  # type: ignore[assignment]
        return self.layer(x).relu() if self.training else self.layer(x)


class Symmetric(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.triu() + x.triu(1).transpose(-1, -2)


class Parametrizing(Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parametrize.register_parametrization(self.layer, "weight", Symmetric())
        return self.layer(x)


class Unparametrizing(Linear):
    def __init__(self) -> None:
        super().__init__()
        parametrizations.weight_norm(self.layer)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parametrize.remove_parametrizations(self.layer, "weight")
        return self.layer(x)


class Hooked(Linear):
    """Has lists of hooks of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.my_hooks: list[Any] = [{"seen": 0}]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.my_hooks[0]["seen"] += 1
        return self.layer(x)


class Representations(tuple):  # type: ignore[type-arg]
    """Will not say how many there are."""

    def __len__(self) -> NoReturn:
        raise NotImplementedError


class WithoutLength(Linear):
    def __init__(self) -> None:
        super().__init__()
        self.kinds = Representations(([0], [1]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        next(iter(self.kinds)).append(2)
        return self.layer(x)


class Failing(Linear):
    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error

    def forward(self, x: torch.Tensor) -> NoReturn:
        self.kept = self.layer(x)
        raise self.error


class Replacing(Linear):
    """Changes whatever it can reach, and fails before it puts anything back."""

    def forward(self, x: torch.Tensor) -> NoReturn:
        nn.Module.__init__ = nn.Module.__setattr__ = lambda *args, **kwargs: None  # type: ignore[method-assign]
        functional.relu = torch.Tensor.relu = lambda x: x  # type: ignore[assignment, method-assign]
        torch_modules.register_module_forward_hook(lambda *args: None)
        torch.set_default_dtype(torch.float64)
        torch.set_default_device("meta")
        torch.set_float32_matmul_precision("high")
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.autograd.set_detect_anomaly(True)
        torch.backends.cuda.enable_flash_sdp(False)
        torch.backends.cudnn.benchmark = True
        torch.manual_seed(7)
        random.seed(7)
        torch.inference_mode().__enter__()
        torch.overrides.BaseTorchFunctionMode().__enter__()
        raise ValueError("in the middle")


MODELS: dict[str, Callable[[], nn.Module]] = {
    kind.__name__: kind
    for kind in (
        WithFrozen, FrozenParameters, Keeper, FailingKeeper, WithGlobals, Delegating, OwnListing, NoState, OtherClass,
        Parametrizing, Unparametrizing, Replacing, Hooked, WithoutLength,
    )
} | {
    "fx": lambda: torch.fx.symbolic_trace(Linear()),
    "exported": lambda: torch.export.export(
        Linear(), (torch.ones(2, 4),), dynamic_shapes=({0: torch.export.Dim("n")},)
    ).module(),
    "weight norm": lambda: parametrizations.weight_norm(nn.Linear(4, 4)),
    "orthogonal": lambda: parametrizations.orthogonal(nn.Linear(4, 4)),
    "scripted": lambda: torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))),
    **{
        type(error).__name__: functools.partial(Failing, error)
        for error in (ValueError("v"), StopIteration("s"), SystemExit(3), GeneratorExit(), KeyError("k"), OSError())
    },
}  # fmt: skip

REFUSED = {
    "FailingKeeper", "Replacing", "ValueError", "StopIteration", "SystemExit", "GeneratorExit", "KeyError", "OSError",
}  # fmt: skip


def surroundings() -> dict[str, Any]:
    return {
        "dtype": torch.get_default_dtype(),
        "device": torch.get_default_device(),
        "grad": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "anomaly": torch.is_anomaly_enabled(),
        "random": (torch.get_rng_state().tolist(), random.getstate()),
        "precision": torch.get_float32_matmul_precision(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "flash": torch.backends.cuda.flash_sdp_enabled(),
        "benchmark": torch.backends.cudnn.benchmark,
        "hooks": len(torch_modules._global_forward_hooks),
        "modes": len(torch.overrides._get_current_function_mode_stack()),
        "functions of modules": [nn.Module.__init__, nn.Module.__call__, nn.Module.__setattr__],
        "attention": functional.scaled_dot_product_attention,
        "functions": [functional.relu, functional.dropout, functional.softmax, torch.Tensor.relu],
    }


def content(thing: Any) -> Any:
    """What a model holds, by identity: lists, dicts and sets opened."""
    if isinstance(thing, dict):
        return [(name, content(value)) for name, value in dict.items(thing)]
    if isinstance(thing, list | tuple | deque | set):
        return [type(thing), *(content(one) for one in thing)]
    if isinstance(thing, nn.Module | Store):
        return [type(thing), content(vars(thing))]
    if isinstance(thing, Slots):
        return [getattr(thing, name, None) for name in Slots.__slots__]
    return id(thing)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("mode", ["inference", pytest.param("training", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", MODELS)
def test_nothing_stays_changed(name: str, mode: str) -> None:
    torch.manual_seed(0)
    model = MODELS[name]()
    kind, before, state = type(model), content(model), surroundings()
    weights = [(w, w.clone()) for w in model.layer.parameters()] if isinstance(model, Linear) else []
    untrainable = name == "OtherClass" and mode == "training"
    with pytest.raises(TraceError) if name in REFUSED or untrainable else nullcontext():
        graph = rk.trace(model, rk.Input("n", 4), **step(mode))
        assert graph.flop != 0 or name == "OtherClass"
    assert surroundings() == state
    assert type(model) is kind
    assert content(model) == before
    assert fakes_below(model) == []
    assert fakes_below([GLOBAL, LAST, globals().get("NEW")]) == []
    assert positions.cache_info().currsize == 0
    assert not hasattr(Keeper, "added")
    assert all(torch.equal(*pair) for pair in weights)
    if name == "scripted":
        assert all(type(weight) is nn.Parameter or type(weight) is torch.Tensor for weight in model.parameters())
        assert model.training
    if name not in REFUSED and name != "OtherClass":
        output = model(torch.ones(3, 4))
        assert type(output) is torch.Tensor
    GLOBAL.clear()
    globals().update(LAST=None)
    globals().pop("NEW", None)
    positions.cache_clear()
    Keeper.table.clear()
    Keeper.newest = None
    vars(Keeper).get("added") is None or delattr(Keeper, "added")


def test_a_model_that_leaves_torch_for_numpy_is_told_what_to_do() -> None:
    with pytest.raises(TraceError, match=r"a trace has no numbers that numpy could take: write this part in torch"):
        rk.trace(lambda x: torch.from_numpy(x.detach().numpy()), rk.Input(2, 4))


def test_whatever_a_model_raises_is_told_with_its_place() -> None:
    with pytest.raises(TraceError, match=r"Failing could not be traced \(test_odd.*: StopIteration: s"):
        rk.trace(Failing(StopIteration("s")), rk.Input("n", 4))
    with pytest.raises(TraceError, match=r"Failing could not .*: SystemExit: 3"):
        rk.trace(Failing(SystemExit(3)), rk.Input("n", 4))
    with pytest.raises(KeyboardInterrupt):
        rk.trace(Failing(KeyboardInterrupt()), rk.Input("n", 4))


class Callable_:  # noqa: N801
    """No module, and unwilling to be asked what it has."""

    def __init__(self) -> None:
        self.layer = nn.Linear(4, 4)
        self.kept: list[Any] = []

    def __getattr__(self, name: str) -> NoReturn:
        raise ValueError(name)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        self.kept.append(x)
        return self.layer(x)


def test_an_object_that_fails_when_asked_for_attributes() -> None:
    model = Callable_()
    # 2 · 4 · 4 for each of n rows, and a sum for each of 4 biases
    assert str(rk.trace(model, rk.Input("n", 4)).matrix_flop) == "32*n"
    assert model.kept == []


@pytest.mark.parametrize("mode", ["inference", "training"])
@pytest.mark.parametrize(
    "outer",
    [
        lambda: torch.autograd.set_detect_anomaly(True),
        torch.inference_mode,
        torch.no_grad,
        lambda: torch.device("meta"),
        lambda: torch.device("cuda"),
        FakeTensorMode,
    ],
    ids=["anomaly", "inference", "no grad", "meta", "cuda", "fake"],
)
def test_modes_around_a_trace_change_nothing_of_it(outer: Callable[[], AbstractContextManager[Any]], mode: str) -> None:
    layers = nn.Sequential(nn.Embedding(50, 16), nn.Conv1d(9, 9, 3, padding=1), nn.LayerNorm(16), nn.GELU())

    def model(x: torch.Tensor) -> torch.Tensor:
        return layers(x) + torch.arange(16) + torch.ones(16)

    alone = rk.trace(model, rk.Input("b", 9, dtype="int64"), **step(mode))
    with pytest.warns(UserWarning, match="Anomaly") if "anomaly" in str(outer) else nullcontext(), outer():
        around = rk.trace(model, rk.Input("b", 9, dtype="int64"), **step(mode))
    assert (around.flop, around.bytes, len(around.ops)) == (alone.flop, alone.bytes, len(alone.ops))


def test_names_of_modules_are_of_letters_that_can_be_printed() -> None:
    model = nn.Module()
    model.add_module("a\x1b[2J\nb", nn.Linear(4, 4))
    model.forward = lambda x: model._modules["a\x1b[2J\nb"](x)
    graph = rk.trace(model, rk.Input("n", 4))
    assert {op.module for op in graph.ops} == {r"a\x1b[2J\nb"}
    assert all(weight.name.isprintable() for weight in graph.weights)


class Converting(nn.Module):
    """Converts a part of itself in each call, as code does that is told nothing of formats and devices."""

    def __init__(self, *how: object) -> None:
        super().__init__()
        self.layer, self.how = nn.Linear(8, 4), how

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        layer = self.layer.to(*self.how)
        return layer(x.to(layer.weight.dtype))


@pytest.mark.parametrize("mode", ["inference", "training"])
@pytest.mark.parametrize(("how", "copies"), [(("cpu", torch.float32), 0), (("cuda",), 0), ((torch.float16,), 3)])
def test_a_module_may_convert_itself(how: tuple[object, ...], copies: int, mode: str) -> None:
    model = Converting(*how)
    before = model.layer.weight
    graph = rk.trace(model, rk.Input("n", 8), mode=mode)
    assert [op.kind for op in graph.ops if op.phase == "forward"].count("aten._to_copy") == copies  # weight, bias, x
    product = next(p for p in graph.priced if p.op.kind == "aten.addmm")
    assert {tensor.dtype.value for tensor in product.op.inputs} == {"float16" if copies else "float32"}
    assert (model.layer.weight is before, before.dtype) == (True, torch.float32)
