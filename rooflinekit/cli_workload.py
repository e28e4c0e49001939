"""The options that describe a workload, shared by the subcommands, and what they say."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rooflinekit.errors import InputError, SizeError, nearest

if TYPE_CHECKING:
    from rooflinekit.ir.inputs import Input
    from rooflinekit.step.prediction import Prediction

#: Sizes named in --input become options, which typer cannot know beforehand.
OPEN = {"allow_extra_args": True, "ignore_unknown_options": True}

_INPUT_HELP = "sizes and format, 'batch,3,224,224' or 'batch,seq:int64', 'name=…' for a keyword; repeatable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What the options say: how targets are called and traced, and on what they are predicted."""

    args: tuple[Input, ...]
    sizes: dict[str, int]
    gpus: tuple[str, ...]
    host: str
    execution: str
    sync: str
    optimizer: str | None
    loss: str | None
    burst: bool
    allow_draft: bool
    options: dict[str, Any]  # of workflows.trace, keyword inputs among them

    def predict(self, *targets: str) -> list[list[Prediction]]:
        """For each target its predictions, one a GPU; each target is traced once."""
        from rooflinekit import workflows
        from rooflinekit.hardware.specs import load_device, load_host
        from rooflinekit.step.execution import Execution

        # Everything that can be wrong is looked at before the slow part.
        execution = Execution(backend=self.execution, sync=self.sync)  # type: ignore[arg-type]  # it checks the words
        devices, host = [load_device(gpu, allow_draft=self.allow_draft) for gpu in self.gpus], load_host(self.host)
        optimizer, loss = _optimizer(self.optimizer), _loss(self.loss)
        from rooflinekit.tracing.targets import load_target

        found = []
        for target in [load_target(target) for target in targets]:
            with _progress(target.name) as advance:
                graph = workflows.trace(
                    target.model,
                    *self.args,
                    name=target.name,
                    sizes=self.sizes,
                    fixed=True,
                    optimizer=optimizer,
                    loss=loss,
                    progress=advance,
                    **self.options,
                )
            found.append(
                [
                    workflows.predict(graph, device, host=host, execution=execution, burst=self.burst)
                    for device in devices
                ]
            )
        return found


def _workload(
    context: typer.Context,
    input: Annotated[list[str] | None, typer.Option("--input", "-i", help=_INPUT_HELP)] = None,
    gpu: Annotated[
        list[str] | None, typer.Option("--gpu", "-g", help="name, alias or path of a specification; repeatable")
    ] = None,
    size: Annotated[
        list[str] | None, typer.Option("--size", help="NAME=VALUE of a size named in --input, the same as --NAME VALUE")
    ] = None,
    mode: Annotated[str, typer.Option(help="inference or training")] = "inference",
    optimizer: Annotated[str | None, typer.Option(help="of torch.optim, such as SGD or AdamW (training)")] = None,
    dtype: Annotated[str | None, typer.Option(help="convert weights and inputs: float16, bfloat16, …")] = None,
    tf32: Annotated[
        bool | None, typer.Option("--tf32/--no-tf32", help="tf32 everywhere or nowhere; by default in convolutions")
    ] = None,
    autocast: Annotated[
        str | None, typer.Option(help="within torch.autocast: fp16 or bf16; weights stay as they are")
    ] = None,
    channels_last: Annotated[
        bool, typer.Option("--channels-last", help="model and inputs with channels last in memory")
    ] = False,
    like: Annotated[
        str | None, typer.Option(help="as another release of PyTorch runs it, such as 1.12 (docs/execution.md)")
    ] = None,
    loss: Annotated[
        str | None, typer.Option(help="of torch.nn.functional, such as cross_entropy, of the output (training)")
    ] = None,
    loss_target: Annotated[
        list[str] | None, typer.Option("--target", help="what the loss gets beside the output, as --input; repeatable")
    ] = None,
    execution: Annotated[
        str, typer.Option(help="how PyTorch runs it: eager, compiled, cuda-graph or reduce-overhead")
    ] = "eager",
    sync: Annotated[str, typer.Option(help="synchronize after each 'step', each 'op', or 'none'")] = "step",
    host: Annotated[str, typer.Option(help="the CPU that issues the work: a name or a path")] = "generic-server",
    burst: Annotated[
        bool, typer.Option("--burst", help="one step on a cool GPU, before the board's power lowers the clock")
    ] = False,
    strict: Annotated[bool, typer.Option("--strict", help="refuse ops without a cost rule")] = False,
    allow_draft: Annotated[
        bool, typer.Option("--allow-draft", help="take a draft, whose numbers are not confirmed")
    ] = False,
) -> Workload:
    check_word("--mode", mode, ("inference", "training"))
    for option, given in (("--optimizer", optimizer), ("--loss", loss), ("--target", loss_target)):
        if given and mode != "training":
            raise InputError(f"{option} belongs to --mode training")
    if loss_target and loss is None:
        raise InputError("--target is handed to the loss: name one, such as --loss cross_entropy")
    if not input:
        raise InputError("--input is missing: the sizes that the model is called with, such as --input batch,3,224,224")
    if not gpu:
        raise InputError("--gpu is missing: name one or more, such as --gpu nvidia-l4 (see `rooflinekit devices`)")
    from rooflinekit.ir.inputs import open_names
    from rooflinekit.ir.origin import autocast_format
    from rooflinekit.ir.release import Release
    from rooflinekit.ir.sizes import check_dims

    args, kwargs = _inputs(input)
    targets, named = _inputs(loss_target or [])
    if named:
        raise InputError(f"--target {next(iter(named))}=…: targets have no names; they are handed over in their order")
    names = open_names((args, kwargs, targets))
    return Workload(
        args=args,
        sizes=check_dims(_sizes(size or [], context.args, names), names, complete=True),
        gpus=tuple(gpu),
        host=host,
        execution=execution,
        sync=sync,
        optimizer=optimizer,
        loss=loss,
        burst=burst,
        allow_draft=allow_draft,
        options={
            "mode": mode,
            "dtype": dtype,
            "tf32": tf32,
            "strict": strict,
            "channels_last": channels_last,
            "autocast": autocast_format(autocast),
            "like": None if like is None else Release.parse(like),
            "targets": targets,
            **kwargs,
        },
    )


def describes_workload(command: Callable[..., None]) -> Callable[..., None]:
    """Decorator: adds the options of a workload to a subcommand, which gets them as the argument `workload`."""
    shared = inspect.signature(_workload, eval_str=True).parameters
    own = {n: p for n, p in inspect.signature(command, eval_str=True).parameters.items() if n != "workload"}

    @functools.wraps(command)
    def with_workload(**values: Any) -> None:
        workload = _workload(**{name: values.pop(name) for name in shared})
        command(workload=workload, **values)

    parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in (*own.values(), *shared.values())]
    with_workload.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    with_workload.__annotations__ = {p.name: p.annotation for p in parameters}
    return with_workload


def check_word(option: str, value: str | None, known: tuple[str, ...]) -> None:
    """Raises InputError for a word that is not in `known`; None is no word and passes."""
    if value is not None and value not in known:
        raise InputError(f"{option} {value!r}: expected {' or '.join(map(repr, known))}{nearest(value, known)}")


def _inputs(texts: list[str]) -> tuple[tuple[Input, ...], dict[str, Input]]:
    from rooflinekit.ir.inputs import Input

    args: list[Input] = []
    kwargs: dict[str, Input] = {}
    for text in texts:
        name, equals, described = text.partition("=")
        if equals:
            kwargs[name.strip()] = Input.parse(described)
        else:
            args.append(Input.parse(text))
    return tuple(args), kwargs


def _sizes(assigned: list[str], rest: list[str], names: tuple[str, ...]) -> dict[str, int]:
    """Values from `--size NAME=VALUE`, and from `--NAME VALUE` or `--NAME=VALUE` among the unknown options."""
    found: dict[str, int] = {}
    words = iter(rest)
    for word in words:
        option, equals, value = word.partition("=")
        name = option.removeprefix("--").replace("-", "_")
        if not word.startswith("--") or name not in names:
            known = [f"--{one}" for one in names]
            sized = f"; the sizes of --input are {', '.join(known)}" if known else ""
            raise InputError(f"unknown option or argument {option!r}{nearest(option, known)}{sized}")
        found[name] = _integer(option, value if equals else next(words, ""))
    for text in assigned:
        name, equals, value = text.partition("=")
        if not equals:
            raise InputError(f"--size {text!r}: expected NAME=VALUE, such as batch=32")
        found[name.strip()] = _integer(f"--size {name}", value)
    return found


def _integer(option: str, value: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise SizeError(f"{option}: expected a positive integer; got {value!r}") from None


def _optimizer(name: str | None) -> Callable[..., Any] | None:
    if name is None:
        return None
    import torch

    classes = [value for value in vars(torch.optim).values() if isinstance(value, type)]
    known = {
        c.__name__.lower(): c for c in classes if issubclass(c, torch.optim.Optimizer) and c.__mro__[1] is not object
    }
    if name.lower() not in known:
        names = [c.__name__ for c in known.values()]
        raise InputError(f"torch.optim has no optimizer {name!r}{nearest(name, names)}")
    return known[name.lower()]


def _loss(name: str | None) -> Callable[..., Any] | None:
    if name is None:
        return None
    from torch.nn import functional

    if not callable(getattr(functional, name, None)):
        known = [word for word in vars(functional) if word.endswith(("loss", "entropy")) or "entropy" in word]
        raise InputError(f"torch.nn.functional has no loss {name!r}{nearest(name, known)}")
    return getattr(functional, name)  # type: ignore[no-any-return]


@contextmanager
def _progress(name: str) -> Iterator[Callable[[int, str], None] | None]:
    """A line on standard error that follows a long trace; only on a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(f"tracing {name}")

        def advance(entered: int, path: str) -> None:
            if entered % 16 == 1:  # drawing costs more than tracing a module
                bar.update(task, description=f"tracing {name}: {entered} modules, now in {path or 'the root'}")

        yield advance
