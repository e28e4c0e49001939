"""The command line: each subcommand parses, calls one workflow, prints."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click
import typer

from rooflinekit.errors import InputError, RooflinekitError, SizeError, nearest

if TYPE_CHECKING:
    from rooflinekit.ir.inputs import Input
    from rooflinekit.step.prediction import Prediction

app = typer.Typer(
    name="rooflinekit",
    help="How long one step of a PyTorch network takes on a GPU, why, and what would change it.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

# Sizes named in --input become options, which typer cannot know beforehand.
_OPEN = {"allow_extra_args": True, "ignore_unknown_options": True}

TargetArgument = Annotated[str, typer.Argument(metavar="TARGET", help="timm:NAME, transformers:NAME or config.json, FILE.py:NAME, package.module:NAME")]
InputOption = Annotated[
    list[str] | None,
    typer.Option("--input", "-i", help="sizes and format, 'batch,3,224,224' or 'batch,seq:int64'; name=… for a keyword; repeatable"),
]
GpuOption = Annotated[list[str] | None, typer.Option("--gpu", "-g", help="name, alias or path of a specification; repeatable")]
HostOption = Annotated[str, typer.Option("--host", help="the CPU that issues the work: a name or a path")]
SizeOption = Annotated[list[str] | None, typer.Option("--size", help="NAME=VALUE of a size named in --input; --NAME VALUE is the same")]
ModeOption = Annotated[str, typer.Option("--mode", help="inference or training")]
OptimizerOption = Annotated[str | None, typer.Option("--optimizer", help="of torch.optim, such as SGD or AdamW (training)")]
DTypeOption = Annotated[str | None, typer.Option("--dtype", help="convert weights and inputs: float16, bfloat16, …")]
TF32Option = Annotated[bool | None, typer.Option("--tf32/--no-tf32", help="tf32 everywhere or nowhere; by default in convolutions")]
SyncOption = Annotated[str, typer.Option("--sync", help="synchronize after each step, each op, or none")]
JsonOption = Annotated[bool, typer.Option("--json", help="print JSON and nothing else")]
ExecutionOption = Annotated[str, typer.Option("--execution", help="eager")]


@app.command(context_settings=_OPEN)
def predict(
    context: typer.Context,
    target: TargetArgument,
    input: InputOption = None,
    gpu: GpuOption = None,
    host: HostOption = "generic-server",
    mode: ModeOption = "inference",
    optimizer: OptimizerOption = None,
    dtype: DTypeOption = None,
    tf32: TF32Option = None,
    execution: ExecutionOption = "eager",
    sync: SyncOption = "step",
    size: SizeOption = None,
    by: Annotated[str | None, typer.Option("--by", help="also a table by module, kind, phase or kernel")] = None,
    depth: Annotated[int | None, typer.Option("--depth", min=1, help="parts of the module path, with --by module")] = None,
    plot: Annotated[Path | None, typer.Option("--plot", help="also write a roofline figure: .pdf, .svg or .png")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="refuse ops without a cost rule")] = False,
    as_json: JsonOption = False,
) -> None:
    """How long one step takes on each GPU.

    Example: rooflinekit predict timm:resnet50 --input batch,3,224,224 --batch 32 --gpu nvidia-l4
    """
    _check_word("--by", by, (None, "module", "kind", "phase", "kernel"))
    workload = _Workload(input, mode, optimizer, dtype, tf32, strict, size, context.args)
    predictions = workload.predict(target, _gpus(gpu), host, execution, sync)
    if plot is not None:
        _save_figure(predictions, plot)
    if as_json:
        tables = {} if by is None else {"by": [json.loads(_table(p, by, depth).to_json(orient="table", index=True))["data"] for p in predictions]}
        _print_json({"predictions": [p.to_dict() for p in predictions], **tables})
        return
    from rooflinekit.present import text

    text.print_predictions(predictions)
    if by is not None:
        for prediction in predictions:
            text.print_breakdown(prediction, _table(prediction, by, depth))
    if plot is not None:
        print(f"figure written to {plot}")


@app.command(context_settings=_OPEN)
def explain(
    context: typer.Context,
    target_a: Annotated[str, typer.Argument(metavar="TARGET_A")],
    target_b: Annotated[str, typer.Argument(metavar="TARGET_B")],
    input: InputOption = None,
    gpu: GpuOption = None,
    host: HostOption = "generic-server",
    mode: ModeOption = "inference",
    optimizer: OptimizerOption = None,
    dtype: DTypeOption = None,
    tf32: TF32Option = None,
    execution: ExecutionOption = "eager",
    sync: SyncOption = "step",
    size: SizeOption = None,
    strict: Annotated[bool, typer.Option("--strict", help="refuse ops without a cost rule")] = False,
    plot: Annotated[Path | None, typer.Option("--plot", help="also write a waterfall figure")] = None,
    as_json: JsonOption = False,
) -> None:
    """Why the network with fewer FLOP is not as much faster.

    Example: rooflinekit explain examples/bottlenecks.py:A examples/bottlenecks.py:A_prime --input 1,64,160,120 --gpu p100-pcie
    """
    from rooflinekit.study import explanation

    workload = _Workload(input, mode, optimizer, dtype, tf32, strict, size, context.args)
    gpus = _gpus(gpu)
    a, b = (workload.predict(target, gpus, host, execution, sync) for target in (target_a, target_b))
    found = [explanation.explain(one, other) for one, other in zip(a, b, strict=True)]
    if plot is not None:
        if len(found) != 1:
            raise InputError(f"--plot draws one waterfall; got {len(found)} GPUs")
        from rooflinekit.present import plot as figures

        figures.save(figures.waterfall(found[0]), plot)
    if as_json:
        _print_json({"explanations": [e.to_dict() for e in found]})
        return
    from rooflinekit.present import text

    for e in found:
        text.print_explanation(e)
    if plot is not None:
        print(f"figure written to {plot}")


@app.command(context_settings=_OPEN)
def plot(
    context: typer.Context,
    target: TargetArgument,
    out: Annotated[Path, typer.Option("--out", "-o", help="file to write: .pdf, .svg or .png")],
    input: InputOption = None,
    gpu: GpuOption = None,
    host: HostOption = "generic-server",
    mode: ModeOption = "inference",
    optimizer: OptimizerOption = None,
    dtype: DTypeOption = None,
    tf32: TF32Option = None,
    execution: ExecutionOption = "eager",
    sync: SyncOption = "step",
    size: SizeOption = None,
    strict: Annotated[bool, typer.Option("--strict", help="refuse ops without a cost rule")] = False,
) -> None:
    """A roofline figure of one step.

    Example: rooflinekit plot timm:resnet50 --input batch,3,224,224 --batch 32 --gpu nvidia-l4 --out figure.pdf
    """
    workload = _Workload(input, mode, optimizer, dtype, tf32, strict, size, context.args)
    _save_figure(workload.predict(target, _gpus(gpu), host, execution, sync), out)
    print(f"figure written to {out}")


@app.command()
def devices(
    name: Annotated[str | None, typer.Argument(help="one device: its numbers, checks and sources")] = None,
    as_json: JsonOption = False,
) -> None:
    """The devices that are known.

    Example: rooflinekit devices nvidia-l4
    """
    from rooflinekit.hardware import specs

    if name is None:
        every = specs.devices()
        if as_json:
            _print_json([json.loads(device.model_dump_json(by_alias=True, exclude_none=True)) for device in every])
            return
        from rooflinekit.present import device_text

        device_text.print_devices(every)
        return
    _show_device(specs.load_device(name), as_json)


@app.command()
def check(
    file: Annotated[str, typer.Argument(metavar="FILE.yaml", help="a device or host specification of your own")],
    as_json: JsonOption = False,
) -> None:
    """Whether a specification is well-formed and agrees with physics.

    Example: rooflinekit check my-gpu.yaml
    """
    from rooflinekit.hardware import specs
    from rooflinekit.hardware.host import Host

    record = specs.read_spec(file)
    if isinstance(record, Host):
        print(f"{file}: host {record.name} is well-formed")
        return
    _show_device(record, as_json)


def main() -> None:
    """Runs the command line. Exit status 0; 2 for wrong use or bad input; 1 for a fault of rooflinekit."""
    try:
        app(standalone_mode=False)
    except RooflinekitError as error:
        _fail(str(error))
    except click.ClickException as error:
        _fail(error.format_message())
    except (click.Abort, KeyboardInterrupt):
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        # The reader of our output has gone, as `head` does: nothing is left to tell it.
        sys.stderr.close()
        sys.exit(0)


# --- what the subcommands share --------------------------------------------------------------------------------


class _Workload:
    """What the options say about the workload."""

    def __init__(
        self,
        inputs: list[str] | None,
        mode: str,
        optimizer: str | None,
        dtype: str | None,
        tf32: bool | None,
        strict: bool,
        sizes: list[str] | None,
        rest: list[str],
    ) -> None:
        _check_word("--mode", mode, ("inference", "training"))
        if not inputs:
            raise InputError("--input is missing: the sizes that the model is called with, such as --input batch,3,224,224")
        self.args, self.kwargs = _inputs(inputs)
        described = [*self.args, *self.kwargs.values()]
        self.sizes = _sizes(sizes or [], rest, [name for one in described for name in one.names])
        self.options = {"mode": mode, "dtype": dtype, "tf32": tf32, "strict": strict}
        self.optimizer = optimizer

    def predict(self, target: str, gpus: list[str], host: str, execution: str, sync: str) -> list[Prediction]:
        """The target on each GPU; it is traced once."""
        from rooflinekit import workflows
        from rooflinekit.hardware.specs import load_device, load_host
        from rooflinekit.ir.sizes import check_dims
        from rooflinekit.step.timeline import Execution

        # Everything that can be wrong is looked at before the slow part.
        chosen = Execution(backend=execution, sync=sync)  # type: ignore[arg-type]  # it checks the words
        machines, issuer = [load_device(gpu) for gpu in gpus], load_host(host)
        names = dict.fromkeys(name for one in (*self.args, *self.kwargs.values()) for name in one.names)
        check_dims(self.sizes, names, complete=True)
        from rooflinekit.tracing.targets import load_target

        found = load_target(target)
        with _progress(found.name) as advance:
            graph = workflows.trace(
                found.model,
                *self.args,
                name=found.name,
                sizes=self.sizes,
                fixed=True,
                optimizer=_optimizer(self.optimizer),
                progress=advance,
                **self.options,  # type: ignore[arg-type]
                **self.kwargs,
            )
        return [workflows.predict(graph, machine, host=issuer, execution=chosen) for machine in machines]


def _inputs(texts: list[str]) -> tuple[list[Input], dict[str, Input]]:
    from rooflinekit.ir.inputs import Input

    args, kwargs = [], {}
    for text in texts:
        name, equals, described = text.partition("=")
        if equals:
            kwargs[name.strip()] = Input.parse(described)
        else:
            args.append(Input.parse(text))
    return args, kwargs


def _sizes(assigned: list[str], rest: list[str], names: list[str]) -> dict[str, int]:
    """Values from `--size NAME=VALUE`, and from `--NAME VALUE` or `--NAME=VALUE` among the unknown options."""
    found: dict[str, int] = {}
    words = iter(rest)
    for word in words:
        name, equals, value = word.partition("=")
        if not word.startswith("--") or name[2:].replace("-", "_") not in names:
            sized = [f"--{known}" for known in names]
            raise InputError(f"unknown option {name!r}{nearest(name, sized)}; sizes of --input: {', '.join(sized) or 'none'}")
        found[name[2:].replace("-", "_")] = _integer(name, value if equals else next(words, ""))
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


def _gpus(gpus: list[str] | None) -> list[str]:
    if not gpus:
        raise InputError("--gpu is missing: name one or more, such as --gpu nvidia-l4; `rooflinekit devices` lists them")
    return gpus


def _optimizer(name: str | None) -> Callable[..., Any] | None:
    if name is None:
        return None
    import torch

    known = {
        word.lower(): value
        for word, value in vars(torch.optim).items()
        if isinstance(value, type) and issubclass(value, torch.optim.Optimizer) and value is not torch.optim.Optimizer
    }
    if name.lower() not in known:
        raise InputError(f"torch.optim has no optimizer {name!r}{nearest(name, (v.__name__ for v in known.values()))}")
    return known[name.lower()]


def _check_word(option: str, value: str | None, known: tuple[str | None, ...]) -> None:
    if value not in known:
        words = [word for word in known if word is not None]
        raise InputError(f"{option} {value!r}: expected {' or '.join(map(repr, words))}{nearest(str(value), words)}")


def _table(prediction: Prediction, by: str, depth: int | None) -> Any:
    return prediction.by_module(depth) if by == "module" else getattr(prediction, f"by_{by}")()


def _save_figure(predictions: list[Prediction], path: Path) -> None:
    from rooflinekit.present import plot as figures

    figures.save(figures.roofline(predictions if len(predictions) > 1 else predictions[0]), path)


def _show_device(device: Any, as_json: bool) -> None:
    from rooflinekit.hardware import checks

    results = checks.run(device)
    if as_json:
        record = json.loads(device.model_dump_json(by_alias=True, exclude_none=True))
        fields = ("name", "expected", "actual", "unit", "status", "note")
        _print_json({**record, "checks": [{field: getattr(one, field) for field in fields} for one in results]})
        return
    from rooflinekit.present import device_text

    device_text.print_device(device, results)


def _print_json(value: object) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False))


@contextmanager
def _progress(name: str) -> Iterator[Callable[[int, str], None] | None]:
    """A line on standard error that follows a long trace; only to a terminal."""
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


def _fail(message: str) -> None:
    print(f"rooflinekit: {message}", file=sys.stderr)
    sys.exit(2)
