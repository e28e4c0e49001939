"""The subcommand that says how long one training step of a decoder takes on many GPUs."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Annotated

import typer

from rooflinekit.cli.guide import Command
from rooflinekit.cli.money import (
    CarbonOption,
    HourOption,
    KwhOption,
    PriceOption,
    PricesOption,
    PueOption,
    PurchaseOption,
    UtilizationOption,
    YearsOption,
)
from rooflinekit.cli.options import ClusterOption, JsonOption, ModelArgument, print_json, progress_line
from rooflinekit.cli.parse import quantity_of
from rooflinekit.cli.train_money import Money


def register(app: typer.Typer) -> None:
    """Adds the subcommand to the program's."""
    app.command(cls=Command)(train)


def train(
    config: ModelArgument,
    cluster: ClusterOption,
    batch: Annotated[int, typer.Option(min=1, help="sequences of a step, of all GPUs together")],
    seq: Annotated[int, typer.Option(min=1, help="tokens of a sequence")] = 4096,
    gpus: Annotated[int | None, typer.Option(min=1, help="how many, from the first; by default all")] = None,
    recipe: Annotated[
        str, typer.Option(help="a program's way: megatron, nemo, nanotron, torchtitan, huggingface …")
    ] = "megatron",
    recompute: Annotated[str, typer.Option(help="in backward: none, selective (attention) or full")] = "none",
    offload: Annotated[
        int, typer.Option(min=0, metavar="LAYERS", help="so many layers' activations wait on the CPU, of each GPU")
    ] = 0,
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
    power_limit: Annotated[
        str | None, typer.Option(metavar="WATTS", help="of each GPU, below the board's own, such as '500 W'")
    ] = None,
    rack: Annotated[
        str | None, typer.Option(metavar="WATTS", help="also what a rack of so many watts trains in a day, by limit")
    ] = None,
    price: PriceOption = None,
    price_per_hour: HourOption = None,
    prices: PricesOption = None,
    purchase_price: PurchaseOption = None,
    years: YearsOption = 4.0,
    utilization: UtilizationOption = 1.0,
    kwh_price: KwhOption = None,
    pue: PueOption = 1.0,
    tokens: Annotated[float | None, typer.Option(help="of a whole run, such as 1e12, for its cost")] = None,
    carbon: CarbonOption = None,
    as_json: JsonOption = False,
) -> None:
    """A decoder's training step on many GPUs, or its best layout.

    From the dimensions of a language model: time by cause, memory by account, MFU and HFU, joules; with a price what a
    run of --tokens costs, with --rack what so many watts train in a day.
    Example: rooflinekit train llama-3.1-8b --cluster dgx-h100 --batch 128 --tp 2
    """
    from rooflinekit.api import train as walks
    from rooflinekit.errors import InputError
    from rooflinekit.serving.decoder import Decoder
    from rooflinekit.training.layout import Layout
    from rooflinekit.training.recipe import recipe_of

    decoder = Decoder.from_config(config, weights="bf16")
    chosen = recipe_of(recipe).with_changes(recompute=recompute, offload=offload, fp8=fp8)
    if out is not None and not search:
        raise InputError("--out: draws what --search has found; add --search")
    money = Money(
        price=price, hour=price_per_hour, prices=prices, purchase=purchase_price, years=years, utilization=utilization,
        kwh=kwh_price, pue=pue, tokens=tokens, carbon=carbon, rack=rack,
    )  # fmt: skip
    money.check(search=search)
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
    at = functools.partial(
        walks.train, decoder, cluster=cluster, batch=batch, seq=seq, gpus=gpus, layout=layout, recipe=chosen, host=host
    )  # fmt: skip
    step = at(power_limit=None if power_limit is None else quantity_of("--power-limit", power_limit, "W"))
    costs, limits = money.costs(step), money.limits(step, at)
    if as_json:
        further = {} if costs is None else {"cost": costs.to_dict()}
        if limits is not None:
            further["power"] = {**limits.to_dict(), "rack": limits.rack(money.rack_w, pue).to_dict("records")}
        print_json("train", {"step": step.to_dict(), "search": None, **further})
        return
    from rooflinekit.present.text.predictions import print_costs, print_limits

    print(step)
    if costs is not None:
        print_costs(costs)
    if limits is not None:
        print_limits(limits, limits.rack(money.rack_w, pue))
