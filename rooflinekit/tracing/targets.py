"""What a command line calls a model → the model, built without weights on the meta device, or to be run."""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from rooflinekit.errors import InputError, RooflinekitError, TargetError, nearest
from rooflinekit.files import FromSource, read_bytes
from rooflinekit.published.models import config_of, language_model, published_names
from rooflinekit.tracing.symbols import UNKNOWN, place_of

_FORMS = (
    "'timm:resnet50', 'torchvision:resnet50', 'transformers:GPT2LMHeadModel', 'transformers:path/to/config.json', "
    "'hf:owner/name', the name of a language model such as 'llama-3.1-8b', 'path/to/file.py:Name' or "
    "'package.module:name'"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A model and what to call it in reports."""

    name: str
    model: Callable[..., Any]


def load_target(text: str, device: str = "meta") -> Target:
    """The model that `text` names: see the message of the TargetError that anything else raises.

    device: where it is built. On "meta" parameters take no memory and initialization no time; elsewhere they are what
    the model's own initialization makes of them.
    """
    if language := language_model(text):
        return _language_model(language, device)
    source, name = _parts(text)
    called = Path(name).stem if source == "transformers" else name
    if source in _LIBRARIES:
        return Target(name=called, model=_built(_factory(source, name), text, device))
    return Target(name=called, model=_from_python(source, name, device))


def check_target(text: str) -> None:
    """Raises TargetError for a text that is no target, and for a file that is not there; nothing is loaded."""
    if language_model(text) is None and (source := _parts(text)[0]).endswith(".py") and not Path(source).is_file():
        raise TargetError(f"{source}: no such file")


def _parts(text: str) -> tuple[str, str]:
    """The library, the file or the module, and what of it is named."""
    source, colon, name = text.partition(":")
    if source not in _LIBRARIES:
        source, colon, name = text.rpartition(":")  # a drive letter has a colon too
    if not (source and colon and name):
        near = nearest(text, published_names())
        written = "" if near else what_to_write(text)
        raise TargetError(f"target {text!r}: {written or near.removeprefix('; ') or f'expected {_FORMS}'}")
    return source, name


def _knowing(source: str, name: str) -> Any:
    """timm, or torchvision's models. Raises TargetError for a model that it lacks."""
    models = _library("timm" if source == "timm" else "torchvision.models")
    known = models.is_model(name) if source == "timm" else name in models.list_models()
    if not known:
        raise TargetError(f"{source} has no model {name!r}{nearest(name, models.list_models())}")
    return models


def usual_shape(target: str) -> tuple[str | int, ...]:
    """What a target of a library is called with: ("batch", channels, height, width) of the images that it was made for,
    ("batch", "seq") of token ids, or () where the library does not say. Raises TargetError for a model it lacks.
    """
    source, _, name = target.partition(":")
    if source == "timm":
        config = _knowing(source, name).get_pretrained_cfg(name)
        return () if config is None else ("batch", *config.input_size)
    if source == "torchvision":
        transforms = _knowing(source, name).get_model_weights(name).DEFAULT.transforms
        size = getattr(transforms, "keywords", {}).get("crop_size")
        return ("batch", 3, size, size) if isinstance(size, int) else ()  # of videos and detectors it says less
    if source == "transformers":
        architecture, config = _class_and_config(name)
        kind = getattr(_library("transformers"), architecture).main_input_name
        if kind == "input_ids" and not config.is_encoder_decoder:
            return ("batch", "seq")
        size = getattr(config, "image_size", None)
        if kind == "pixel_values" and isinstance(size, int):
            return ("batch", getattr(config, "num_channels", 3), size, size)
    return ()


def _factory(source: str, name: str) -> Callable[[], Any]:
    """What builds a library's model. Raises TargetError for one that it lacks."""
    if source == "timm":
        return functools.partial(_knowing(source, name).create_model, name)
    if source == "torchvision":
        # weights are neither loaded nor needed: detectors ask for their backbone's by default
        backbone = {"weights_backbone": None} if name.partition("_")[0] in _WITH_BACKBONE else {}
        return functools.partial(_knowing(source, name).get_model, name, weights=None, **backbone)
    architecture, config = _class_and_config(name)
    return functools.partial(getattr(_library("transformers"), architecture), config)


_LIBRARIES = ("timm", "transformers", "torchvision")
_WITH_BACKBONE = (
    "fasterrcnn", "maskrcnn", "keypointrcnn", "retinanet", "fcos", "ssd300", "ssdlite320", "deeplabv3", "fcn", "lraspp",
)  # fmt: skip


def _class_and_config(name: str) -> tuple[str, Any]:
    """The name of a class of transformers and its configuration, by that name or by the path of a config.json."""
    transformers = _library("transformers")
    if name.endswith(".json"):
        return _transformers_config(transformers, Path(name))
    config_class = getattr(getattr(transformers, name, None), "config_class", None)
    if config_class is None:
        known = [word for word in dir(transformers) if "For" in word or word.endswith("Model")]
        raise TargetError(f"transformers has no model {name!r}{nearest(name, known)}")
    return name, config_class()


def _language_model(source: str, device: str) -> Target:
    """A model by its name: what transformers makes of the family's text part."""
    transformers = _library("transformers")
    name, config = config_of(source, TargetError)
    made = _made_config(transformers, config, source)
    return Target(name=name, model=_built(lambda: transformers.AutoModelForCausalLM.from_config(made), source, device))


def _transformers_config(transformers: Any, path: Path) -> tuple[str, Any]:
    _, fields = config_of(path, TargetError)
    architectures: Any = fields.get("architectures")
    named = isinstance(architectures, list) and architectures and isinstance(architectures[0], str)
    if not named or not hasattr(getattr(transformers, str(architectures[0]), None), "config_class"):
        raise TargetError(
            f'{path}: expected "architectures" to list a transformers model, such as ["LlamaForCausalLM"]; '
            f"got {architectures!r:.80}"
        )
    return str(architectures[0]), _made_config(transformers, fields, str(path))


def _made_config(transformers: Any, stated: Mapping[str, Any], source: str) -> Any:
    fields = {key: value for key, value in stated.items() if not key.startswith("_")}
    model_type = fields.pop("model_type", None)
    if not isinstance(model_type, str) or model_type not in transformers.CONFIG_MAPPING:
        hint = nearest(str(model_type)[:80], transformers.CONFIG_MAPPING.keys())
        raise TargetError(f'{source}: "model_type" {model_type!r:.80} is unknown to transformers{hint}')
    try:
        return transformers.AutoConfig.for_model(model_type, **fields)
    except Exception as error:  # transformers checks some of the fields, and trips over others
        raise TargetError(f"{source}: transformers refuses it: {type(error).__name__}: {error}") from error


def _from_python(source: str, name: str, device: str) -> Any:
    found: Any = _module(source)
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            hint = nearest(part, (word for word in dir(found) if not word.startswith("_")))
            raise TargetError(f"{source} has no {part!r}{hint}") from None
    if isinstance(found, nn.Module):
        return found
    if not callable(found):
        raise TargetError(
            f"{source}:{name}: expected a module, a class of modules or a factory without arguments; "
            f"got {type(found).__name__}"
        )
    model = _built(found, f"{source}:{name}", device)
    if not callable(model):
        raise TargetError(f"{source}:{name}: the factory returned {type(model).__name__}, which cannot be called")
    return model


def _module(source: str) -> Any:
    path = Path(source)
    is_file = source.endswith(".py") or os.path.exists(path) or len(path.parts) > 1
    if is_file and not os.path.isfile(path):
        reason = "is a directory; expected a Python file" if os.path.isdir(path) else "no such file"
        raise TargetError(f"{source}: {reason}")
    for known in _brought:  # another target's modules may have the names of this one's
        sys.modules.pop(known, None)
    _brought.clear()
    before = set(sys.modules)
    # The console script, unlike `python -m`, does not look into the current folder.
    sys.path.insert(0, str(path.resolve().parent if is_file else Path.cwd()))
    try:
        if not is_file:
            return importlib.import_module(source)
        loader = FromSource(path.stem, str(path)) if path.suffix == ".py" else None
        spec = importlib.util.spec_from_file_location(path.stem, path, loader=loader)
        if spec is None or spec.loader is None:
            raise TargetError(f"{source}: not a Python file")
        module = importlib.util.module_from_spec(spec)
        sys.modules.setdefault(path.stem, module)  # dataclasses and pickles look themselves up
        # Not from compiled files beside it, which are told from a changed source by its size and time alone.
        exec(compile(read_bytes(path, TargetError), str(path), "exec", dont_inherit=True), module.__dict__)
    except RooflinekitError:
        raise
    except ModuleNotFoundError as error:
        raise TargetError(f"{source}: cannot be imported: {error}; a target is one of {_FORMS}") from error
    except Exception as error:
        if "torchvision::" in str(error) and not _declared:  # its compiled part is missing
            declare_torchvision_operators()
            return _module(source)
        raise TargetError(f"{source}: fails on import{_at(error)}: {type(error).__name__}: {error}") from error
    finally:
        folder = sys.path.pop(0)
        found = ((name, getattr(sys.modules[name], "__file__", None)) for name in sys.modules.keys() - before)
        _brought.extend(name for name, file in found if str(file).startswith(folder + os.sep))
    return module


_brought: list[str] = []  # modules that the last target has brought from its own folder


def _built(factory: Callable[[], Any], name: str, device: str) -> Any:
    try:
        with torch.device(device):
            return factory()
    except RuntimeError as error:
        if device != "meta" or "meta" not in str(error):
            raise TargetError(f"{name}: cannot be built{_at(error)}: {error}") from error
        return _built(factory, name, "cpu")  # it looks at numbers, such as a schedule's
    except Exception as error:
        needs = isinstance(error, TypeError) and "required positional argument" in str(error)
        hint = "; name a function without arguments that returns it, with the values it is to have" if needs else ""
        raise TargetError(f"{name}: cannot be built{_at(error)}: {type(error).__name__}: {error}{hint}") from error


def _at(error: Exception) -> str:
    """Where it was raised, in brackets; nothing where no line of the model's code is known."""
    place = place_of(error)
    return "" if place == UNKNOWN else f" ({place})"


def _library(name: str) -> Any:
    declare_torchvision_operators()
    try:
        return importlib.import_module(name)
    except ImportError as error:
        name = name.partition(".")[0]
        raise TargetError(
            f"targets that begin with '{name}:' need {name}, which cannot be imported ({error}); "
            "pip install 'rooflinekit[models]'"
        ) from error


_TORCHVISION_OPERATORS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "deform_conv2d(Tensor input, Tensor weight, Tensor offset, Tensor mask, Tensor bias, SymInt stride_h, "
    "SymInt stride_w, SymInt pad_h, SymInt pad_w, SymInt dilation_h, SymInt dilation_w, SymInt groups, "
    "SymInt offset_groups, bool use_mask) -> Tensor",
    "roi_align(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width, "
    "int sampling_ratio, bool aligned) -> Tensor",
)
_declared: list[torch.library.Library] = []


def declare_torchvision_operators() -> None:
    """Lets torchvision be imported where its compiled operators are missing, as with a CPU build of torch.

    Its Python code looks these up by name; they are never run here.
    """
    if _declared or importlib.util.find_spec("torchvision") is None:
        return
    try:
        import torchvision  # noqa: F401
    except (RuntimeError, AttributeError, ImportError):
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        library = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
        for schema in _TORCHVISION_OPERATORS:
            library.define(schema)  # type: ignore[no-untyped-call]
        _declared.append(library)
        from torchvision import extension

        extension._has_ops = lambda: True  # else its functions refuse before they ask for an operator


# What a name stands for in a step: an optimizer of torch.optim, a loss of torch.nn.functional.


def optimizer_of(given: Callable[..., Any] | str | None) -> Callable[..., Any] | None:
    """The optimizer of torch.optim with this name, in any case; what is no name, as it is. Raises InputError."""
    built: Any = given
    if isinstance(built, torch.optim.Optimizer):
        name = type(built).__name__
        raise InputError(f"optimizer: expected what builds one, such as {name!r}; got an optimizer of given parameters")
    if not isinstance(given, str):
        return _called("optimizer", given, "'AdamW' or torch.optim.AdamW")
    base = torch.optim.Optimizer
    classes = [value for value in vars(torch.optim).values() if isinstance(value, type)]
    known = {c.__name__.lower(): c for c in classes if issubclass(c, base) and c is not base}
    if given.lower() not in known:
        names = [c.__name__ for c in known.values()]
        raise InputError(f"torch.optim has no optimizer {given!r}{nearest(given, names)}")
    return known[given.lower()]


def loss_of(given: Callable[..., Any] | str | None) -> Callable[..., Any] | None:
    """The function of torch.nn.functional with this name, of a model's output or of the `logits` in it.

    Logits [batch, tokens, classes] beside targets [batch, tokens] count as batch · tokens rows, as of language models:
    cross_entropy itself looks for classes in the second dimension. What is no name, as it is. Raises InputError.
    """
    if not isinstance(given, str):
        return _called("loss", given, "'mse_loss' or torch.nn.functional.mse_loss")
    if not callable(getattr(functional, given, None)):
        known = [word for word in vars(functional) if word.endswith("loss") or "entropy" in word]
        raise InputError(f"torch.nn.functional has no loss {given!r}{nearest(given, known)}")
    return functools.partial(_loss, getattr(functional, given), rows=given in ("cross_entropy", "nll_loss"))


def _called(option: str, given: Any, such: str) -> Callable[..., Any] | None:
    if given is None:
        return None
    if not callable(given):
        raise InputError(f"{option}: expected a name or something to call, such as {such}; got {given!r:.60}")
    found: Callable[..., Any] = given
    return found


def _loss(function: Callable[..., Any], output: Any, *targets: Any, rows: bool) -> Any:
    output = getattr(output, "logits", output)
    if rows and len(targets) == 1 and output.ndim == 3 and output.shape[:2] == targets[0].shape:
        output, targets = output.flatten(0, 1), (targets[0].flatten(),)
    return function(output, *targets)


# What people write for a model, and the target that it stands for: the answer to a name that is no target.


_WEIGHTS = (".pt", ".pth", ".ckpt", ".bin", ".safetensors", ".onnx", ".gguf", ".h5")


def what_to_write(text: str) -> str:
    """The target that `text` means, in a sentence for an error; empty where nothing tells.

    In turn: a file of weights, a Python file, a model of timm or torchvision by its letters, a family of transformers.

    >>> what_to_write("net.safetensors")
    'weights are not read; name the Python that builds the model, such as net.py:Net'
    """
    path = Path(text)
    if path.suffix in _WEIGHTS:
        return f"weights are not read; name the Python that builds the model, such as {path.stem}.py:Net"
    if path.suffix == ".py":
        names = _factories(path)
        return f"write {text}:Name, of a class or a function without arguments in it" + (
            f": {', '.join(names)}" if names else ""
        )
    owner, _, name = text.rpartition("/")
    found = _of_libraries(name)
    cached = f"write hf:{text}, or " if owner and found.startswith("write transformers:") else ""
    return cached + found.removeprefix("write ") if cached else found


def _factories(path: Path) -> list[str]:
    """The classes of a file, or its functions where it has none; without running it."""
    try:
        body = ast.parse(path.read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return []
    classes = [node.name for node in body if isinstance(node, ast.ClassDef)]
    return classes or [node.name for node in body if isinstance(node, ast.FunctionDef)]


def _of_libraries(name: str) -> str:
    try:
        packages = {"timm": _library("timm"), "torchvision": _library("torchvision.models")}
        families = _library("transformers.models.auto.modeling_auto").MODEL_MAPPING_NAMES
    except TargetError:
        return ""
    models = [f"{source}:{model}" for source, package in packages.items() for model in package.list_models()]
    for source in packages:
        if found := _same_letters(f"{source}:{name}", models):
            return f"write {found}"
    if family := _same_letters(name.partition("-")[0], families):
        classes = families[family]
        return f"write transformers:{classes if isinstance(classes, str) else classes[0]}"
    return nearest(f"timm:{name}", models, likeness=0.85).removeprefix("; ")


def _same_letters(name: str, known: Iterable[str]) -> str | None:
    return next((model for model in known if _letters(model) == _letters(name)), None)


def _letters(name: str) -> str:
    return "".join(filter(str.isalnum, name)).lower()
