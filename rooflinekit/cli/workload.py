"""The options that describe a workload, shared by the subcommands; what they say is a `Workload`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rooflinekit.cli import guide
from rooflinekit.cli.described import Workload
from rooflinekit.cli.options import DraftOption, gpu_names, host_names
from rooflinekit.cli.parse import assumed_of, inputs_of, limits_of, size_lists_of, sizes_of
from rooflinekit.errors import InputError
from rooflinekit.ir.inputs import mode_of

if TYPE_CHECKING:
    from rooflinekit.ir.inputs import Input

_START = 32  # where the search for a size begins, unless the size is given; it ends at the same place from anywhere

#: Sizes named in --input become options, which typer cannot know beforehand.
OPEN = {"allow_extra_args": True, "ignore_unknown_options": True}

NO_GPU = "--gpu is missing: name one or more, such as --gpu nvidia-l4 (see `rooflinekit devices`)"
_INPUT_HELP = (
    "what the model is called with: sizes and format, 'batch,3,224,224' or 'batch,seq:int64', 'name=…' for a keyword; "
    "repeatable; may be left out for models of timm and for language models by name"
)


def _workload(
    context: typer.Context,
    input: Annotated[list[str] | None, typer.Option("--input", "-i", help=_INPUT_HELP)] = None,
    gpu: Annotated[
        list[str] | None,
        typer.Option(
            "--gpu", "-g", autocompletion=gpu_names, help="name, alias or path of a specification; repeatable"
        ),
    ] = None,
    size: Annotated[
        list[str] | None,
        typer.Option("--size", help="a number for a size named in --input: 'batch=32', which --batch 32 says too"),
    ] = None,
    mode: Annotated[
        str, typer.Option(help="inference, training, or forward: training mode without gradients")
    ] = "inference",
    optimizer: Annotated[str | None, typer.Option(help="an optimizer of torch.optim, such as SGD or AdamW")] = None,
    dtype: Annotated[
        str | None, typer.Option(help="the format that weights and inputs are converted to: bf16, fp16, fp32")
    ] = None,
    tf32: Annotated[
        bool | None,
        typer.Option("--tf32/--no-tf32", help="allow tf32 everywhere or nowhere; by default in convolutions alone"),
    ] = None,
    autocast: Annotated[
        str | None, typer.Option(help="run within torch.autocast, as fp16 or bf16; weights keep their format")
    ] = None,
    channels_last: Annotated[
        bool, typer.Option("--channels-last", help="model and inputs with channels last in memory")
    ] = False,
    like: Annotated[
        str | None, typer.Option(help="predict what another release of PyTorch runs, such as 1.12 (docs/execution.md)")
    ] = None,
    inference_mode: Annotated[
        bool, typer.Option("--inference-mode", help="run within torch.inference_mode in the place of torch.no_grad")
    ] = False,
    loss: Annotated[
        str | None,
        typer.Option(
            help="a function of torch.nn.functional, such as cross_entropy; called with the output and each --target"
        ),
    ] = None,
    loss_target: Annotated[
        list[str] | None,
        typer.Option(
            "--target", help="what the loss takes beside the model's output, written like --input; repeatable"
        ),
    ] = None,
    execution: Annotated[
        str, typer.Option(help="how PyTorch runs it: eager, compiled, cuda-graph or reduce-overhead")
    ] = "eager",
    sync: Annotated[
        str, typer.Option(help="the CPU waits for the GPU after each 'step', each 'op', or never ('none')")
    ] = "step",
    copy: Annotated[
        str, typer.Option(help="inputs are on the GPU ('none'), or copied from 'pageable' or 'pinned' memory")
    ] = "none",
    non_blocking: Annotated[
        bool, typer.Option("--non-blocking", help="the CPU does not wait for copies (from pinned memory)")
    ] = False,
    loader_rate: Annotated[
        float | None, typer.Option(help="samples a second from the data loader; by default it never holds the step up")
    ] = None,
    attention: Annotated[
        str | None,
        typer.Option(
            metavar="KERNEL",
            help="what runs attention where it can: cudnn, flash, flash-3, flash-4, efficient, math, triton, aotriton, "
            "ck, aiter; by default what PyTorch chooses",
        ),
    ] = None,
    host: Annotated[
        str,
        typer.Option(
            autocompletion=host_names,
            help="the CPU that issues the work: a name, as `rooflinekit hosts` lists them, or a path",
        ),
    ] = "unnamed",
    burst: Annotated[
        bool, typer.Option("--burst", help="one step on a cool GPU, before the board's power lowers the clock")
    ] = False,
    power_limit: Annotated[
        str | None,
        typer.Option(metavar="WATTS", help="a limit below the board's own, such as '250 W' (docs/energy.md)"),
    ] = None,
    sm_clock: Annotated[
        str | None, typer.Option(metavar="CLOCK", help="the highest clock of the SMs, such as '1.2 GHz'")
    ] = None,
    constants: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="constants of the GPU from a file of `rooflinekit calibrate`, in the place of the shipped ones",
        ),
    ] = None,
    assume: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="a value that depends on the data of a run: a number, a share up to 1.0, true or false; repeatable",
        ),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="refuse ops without a cost rule, and sizes that depend on data")
    ] = False,
    cache: Annotated[
        bool, typer.Option("--cache/--no-cache", help="keep traces, so that the next command need not make them")
    ] = True,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="say on standard error why a trace cannot be kept for the next command")
    ] = False,
    allow_draft: DraftOption = False,
    *,
    target: str | None = None,
    needs_gpu: bool = True,
    needs_input: bool = True,
    many_sizes: bool = False,
    needs_sizes: bool = True,
    solved: str | None = None,
) -> Workload:
    mode = mode_of(mode, "--mode")
    for option, given in (("--optimizer", optimizer), ("--loss", loss), ("--target", loss_target)):
        if given and mode != "training":
            raise InputError(f"{option} belongs to --mode training")
    if loss_target and loss is None:
        raise InputError("--target is handed to the loss: name one, such as --loss cross_entropy")
    from rooflinekit.api.keywords import usual_inputs
    from rooflinekit.ir.graph import autocast_format
    from rooflinekit.ir.inputs import Release, open_names
    from rooflinekit.ir.sizes import check_dims, check_names

    args, kwargs = inputs_of(input or [])
    args = args if input or not target else usual_inputs(target, kept=cache)
    targets, named = inputs_of(loss_target or [])
    if named:
        raise InputError(f"--target {next(iter(named))}=…: targets have no names; they are handed over in their order")
    names = open_names((args, kwargs, targets))
    sizes: dict[str, int] = {}
    start: dict[str, int] = {}
    lists: dict[str, Sequence[int]] = {}
    # A misspelled option first: --gup l4 is no missing --gpu.
    options = guide.option_names(context.command)
    if many_sizes:
        lists = size_lists_of(size or [], context.args, names, options)
    else:
        sizes = sizes_of(size or [], context.args, names, options)
    if not (args or kwargs) and needs_input:
        raise InputError("--input is missing: the sizes that the model is called with, such as --input batch,3,224,224")
    if not gpu and needs_gpu:
        raise InputError(NO_GPU)
    if many_sizes:
        check_names(lists, names, complete=needs_sizes)
    else:
        if solved is not None and solved in names and solved not in sizes:
            start = {solved: _START}
        sizes = check_dims({**start, **sizes}, names, complete=True)
    return Workload(
        args=args,
        called=bool(args or kwargs),
        sizes=sizes,
        sought=tuple(start),
        lists=lists,
        gpus=tuple(gpu or ()),
        host=host,
        execution={
            "backend": execution,
            "sync": sync,
            "copy": copy,
            "non_blocking": non_blocking,
            "loader_rate": loader_rate,
            "attention": attention,
        },
        optimizer=optimizer,
        loss=loss,
        burst=burst,
        constants=constants,
        allow_draft=allow_draft,
        cache=cache,
        verbose=verbose,
        limits=limits_of(power_limit, sm_clock),
        options={
            "mode": mode,
            "dtype": dtype,
            "tf32": tf32,
            "strict": strict,
            "channels_last": channels_last,
            "autocast": autocast_format(autocast),
            "inference_mode": inference_mode,
            "like": None if like is None else Release.parse(like),
            "targets": targets,
            **({"assume": assumed_of(assume)} if assume else {}),
            **_keywords(kwargs),
        },
    )


def _keywords(given: dict[str, Input]) -> dict[str, Any]:
    """Inputs by name as arguments of `trace`, those that it has itself among its `keywords`."""
    own = {name: value for name, value in given.items() if name in _OWN}
    return {name: value for name, value in given.items() if name not in own} | ({"keywords": own} if own else {})


#: Arguments of `rooflinekit.trace`, which a model's may be called too.
_OWN = (
    "model", "mode", "loss", "targets", "optimizer", "dtype", "autocast", "channels_last", "tf32", "like", "sizes",
    "fixed", "assume", "name", "rules", "strict", "progress", "keywords",
)  # fmt: skip


def describes_workload(
    command: Callable[..., None],
    *,
    needs_gpu: bool = True,
    needs_input: bool = True,
    many_sizes: bool = False,
    needs_sizes: bool = True,
    solves: str | None = None,
    mode: str = "inference",
) -> Callable[..., None]:
    """Decorator: adds the options of a workload to a subcommand, which gets them as the argument `workload`.

    needs_gpu, needs_input: whether --gpu and --input have to be given. many_sizes: whether a size may be a list.
    needs_sizes: whether each size then has to be named.
    solves: the command's argument that names a size which is looked for, and need not be given.
    mode: what --mode is without being given.
    """
    needs = ("target", "needs_gpu", "needs_input", "many_sizes", "needs_sizes", "solved")
    shared = {n: p for n, p in inspect.signature(_workload, eval_str=True).parameters.items() if n not in needs}
    shared["mode"] = shared["mode"].replace(default=mode)
    own = {n: p for n, p in inspect.signature(command, eval_str=True).parameters.items() if n != "workload"}

    @functools.wraps(command)
    def with_workload(**values: Any) -> None:
        workload = _workload(
            **{name: values.pop(name) for name in shared},
            target=values.get("target", values.get("target_a")),
            needs_gpu=needs_gpu,
            needs_input=needs_input,
            many_sizes=many_sizes,
            needs_sizes=needs_sizes,
            solved=None if solves is None else values[solves],
        )
        command(workload=workload, **values)

    parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in (*own.values(), *shared.values())]
    with_workload.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    with_workload.__annotations__ = {p.name: p.annotation for p in parameters}
    with_workload.registered = {"context_settings": OPEN}  # type: ignore[attr-defined]
    return with_workload
