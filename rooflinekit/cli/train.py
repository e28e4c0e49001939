"""The subcommand that says how long one training step of a decoder takes on many GPUs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rooflinekit.cli.guide import Command
from rooflinekit.cli.options import ClusterOption, JsonOption, print_json, progress_line


def register(app: typer.Typer) -> None:
    """Adds the subcommand to the program's."""
    app.command(cls=Command)(train)


def train(
    config: Annotated[
        Path, typer.Argument(metavar="CONFIG.json", help="a HuggingFace config.json of a language model")
    ],
    cluster: ClusterOption,
    batch: Annotated[int, typer.Option(min=1, help="sequences of a step, of all GPUs together")],
    seq: Annotated[int, typer.Option(min=1, help="tokens of a sequence")] = 4096,
    gpus: Annotated[int | None, typer.Option(min=1, help="how many, from the first; by default all")] = None,
    recipe: Annotated[str, typer.Option(help="megatron, megatron-2023, nemo, mpt or pytorch")] = "megatron",
    recompute: Annotated[str, typer.Option(help="in backward: none, selective (attention) or full")] = "none",
    fp8: Annotated[bool, typer.Option("--fp8", help="products of 8 bits")] = False,
    tp: Annotated[int, typer.Option(min=1, help="GPUs that share each layer; with tokens cut between products")] = 1,
    cp: Annotated[int, typer.Option(min=1, help="GPUs that share a sequence")] = 1,
    pp: Annotated[int, typer.Option(min=1, help="stages of a pipeline")] = 1,
    vp: Annotated[int, typer.Option(min=1, help="virtual stages of a GPU")] = 1,
    ep: Annotated[int, typer.Option(min=1, help="GPUs that share out the experts")] = 1,
    micro_batch: Annotated[int, typer.Option(min=1, help="sequences at once")] = 1,
    sharding: Annotated[str, typer.Option(help="of copies: ddp, zero-1, grad-op, fsdp or hybrid")] = "zero-1",
    search: Annotated[
        bool, typer.Option("--search", help="the fastest layouts in the place of one, and the least memory for a time")
    ] = False,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="with --search: also draw time over memory")] = None,
    host: Annotated[str | None, typer.Option(help="in the place of the cluster's")] = None,
    as_json: JsonOption = False,
) -> None:
    """A decoder's training step on many GPUs, or its best layout.

    From the dimensions of a language model: time by cause, memory by account, MFU and HFU.
    Example: rooflinekit train examples/decoders/llama-3.1-8b.json --cluster dgx-h100 --batch 128 --tp 2
    """
    from rooflinekit.api import train as walks
    from rooflinekit.errors import InputError
    from rooflinekit.serving.decoder import Decoder
    from rooflinekit.training.layout import Layout
    from rooflinekit.training.recipe import recipe_of

    decoder = Decoder.from_config(config)
    chosen = recipe_of(recipe).with_changes(recompute=recompute, fp8=fp8)
    if out is not None and not search:
        raise InputError("--out: draws what --search has found; add --search")
    if search:
        with progress_line("looking at layouts") as say:
            found = walks.search_layouts(
                decoder, cluster=cluster, batch=batch, seq=seq, gpus=gpus, recipe=chosen, host=host,
                progress=None if say is None else lambda count: say(f"{count} layouts"),
            )  # fmt: skip
        if out is not None:
            from rooflinekit.present.figures import plot

            plot.save(plot.layouts(found), out)
        if as_json:
            print_json("train", {"step": found.best.to_dict(), "search": found.to_dict()})
        else:
            print(found)
        return
    layout = Layout(
        tensor=tp, sequence=tp > 1, context=cp, pipeline=pp, chunks=vp, expert=ep, micro_batch=micro_batch,
        sharding=sharding,
    )  # fmt: skip
    step = walks.train(
        decoder, cluster=cluster, batch=batch, seq=seq, gpus=gpus, layout=layout, recipe=chosen, host=host
    )  # fmt: skip
    if as_json:
        print_json("train", {"step": step.to_dict(), "search": None})
        return
    print(step)
