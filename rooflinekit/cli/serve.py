"""The subcommand that serves a language model."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rooflinekit.cli.options import JsonOption, ModelArgument, print_json
from rooflinekit.cli.serve_engine import EngineOptions, numbers, places
from rooflinekit.cli.serve_rates import Rates, serve_rates
from rooflinekit.errors import CapacityError, FormatError, InputError

if TYPE_CHECKING:
    from rooflinekit.present.text.serving import Refused
    from rooflinekit.serving.decoder import Decoder
    from rooflinekit.serving.served import Serving


def serve(
    config: ModelArgument,
    gpu: Annotated[list[str] | None, typer.Option(help="name, alias or specification file; repeatable")] = None,
    batch: Annotated[str, typer.Option(help="clients that ask at once; several as 1,8,64")] = "1",
    input_tokens: Annotated[
        str, typer.Option("--input", "-i", help="tokens of a prompt; several as 1024,4096")
    ] = "1024",
    output: Annotated[int, typer.Option(min=1, help="tokens of an answer")] = 256,
    weights: Annotated[
        str | None,
        typer.Option(
            help="bf16, fp16, fp8, fp8-dynamic, fp8-block, int8-dynamic, int8, int4, nvfp4 or mxfp4; several as "
            "bf16,fp8; by default as the model is published"
        ),
    ] = None,
    kv: Annotated[str, typer.Option(help="format of the cache: bf16, fp16 or fp8; several as bf16,fp8")] = "bf16",
    cluster: Annotated[
        list[str] | None, typer.Option(help="name or file of a cluster, whose first GPUs serve; repeatable")
    ] = None,
    tp: Annotated[str, typer.Option(help="GPUs of the cluster that share each layer; several as 1,2,4")] = "1",
    ep: Annotated[
        str, typer.Option(help="parts of the experts over all GPUs; 1: all share each; several as 1,8")
    ] = "1",
    dp: Annotated[
        str, typer.Option(help="groups of --tp GPUs with sequences of their own, that share the experts")
    ] = "1",
    engine: Annotated[
        str | None,
        typer.Option(
            metavar="NAME[:VERSION]",
            help="vllm:0.12, sglang:0.5.8, tensorrt-llm:1.0: the defaults of the options below, to --heads; several by "
            "commas",
        ),
    ] = None,
    host_work: Annotated[
        str | None,
        typer.Option("--host-work", help="overlapped with the GPU's (default), or serial: between its steps"),
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(
            help="prompts are read in mixed steps (default), beside sequences that go on, or prefill-first, or both"
        ),
    ] = None,
    step_tokens: Annotated[
        str | None, typer.Option(help="most tokens of a step, by default 8192; several as 2048,8192")
    ] = None,
    chunks: Annotated[
        bool | None,
        typer.Option(help="a prompt is cut where a step's tokens end (default); otherwise it waits until it fits"),
    ] = None,
    reserve: Annotated[
        str | None,
        typer.Option(help="of the cache: grow, as an answer does (default), or whole, for all its tokens; with --rate"),
    ] = None,
    sequences: Annotated[int | None, typer.Option(min=1, help="most sequences at once; by default any number")] = None,
    memory_share: Annotated[
        float | None, typer.Option(help="of the GPU's memory that the engine takes, by default 0.9")
    ] = None,
    graph_sizes: Annotated[
        str | None,
        typer.Option(help="sequences that steps are captured for as CUDA graphs, and filled up to: 1,2,4,8,16"),
    ] = None,
    sums: Annotated[
        str | None,
        typer.Option(help="over GPUs: by nccl (default), or one-shot: by the engine's own kernels, for NVLink"),
    ] = None,
    heads: Annotated[
        str | None,
        typer.Option(help="that share keys read them together (default), or apart, as older kernels do while decoding"),
    ] = None,
    draft: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="with --acceptance: the model that proposes tokens; else they are free"),
    ] = None,
    draft_tokens: Annotated[int, typer.Option(help="with --acceptance: tokens proposed in each step")] = 4,
    acceptance: Annotated[
        float | None, typer.Option(help="speculative decoding: chance that a proposed token is kept, such as 0.7")
    ] = None,
    adapters: Annotated[int, typer.Option(min=0, help="LoRA adapters in memory, of which each sequence uses one")] = 0,
    adapter_rank: Annotated[int, typer.Option(help="of each LoRA adapter")] = 16,
    prefill_engines: Annotated[
        int, typer.Option(min=0, help="copies of the model that only read prompts; with --rate or --slo")
    ] = 0,
    decode_engines: Annotated[
        int, typer.Option(min=1, help="with --prefill-engines: copies that go on with the answers")
    ] = 1,
    prefill_tp: Annotated[
        int | None, typer.Option(help="GPUs of a copy that only reads prompts; by default as many as of the others")
    ] = None,
    link: Annotated[
        str, typer.Option(help="with --prefill-engines: speed at which each GPU hands its part of the cache on")
    ] = "50 GB/s",
    price: Annotated[
        float | None, typer.Option(help="dollars for one GPU, bought or for an hour, in the place of its launch price")
    ] = None,
    power_limit: Annotated[
        str | None,
        typer.Option(metavar="WATTS", help="of each GPU, below the board's own: '400 W'; several as '400 W,700 W'"),
    ] = None,
    sm_clock: Annotated[
        str | None, typer.Option(metavar="CLOCK", help="the highest clock of the SMs, such as '1.2 GHz'")
    ] = None,
    rate: Annotated[
        str | None, typer.Option(help="requests come at this rate, whoever waits: 4/s, 120/min; several as 1,2,4/s")
    ] = None,
    requests: Annotated[
        str,
        typer.Option(
            help="how many come at the rate, or a log: a CSV file with columns arrival,input,output and perhaps "
            "cached, or prefix,shared"
        ),
    ] = "1000",
    arrivals: Annotated[
        str, typer.Option(help="poisson, even, or gamma:CV with the gaps' coefficient of variation")
    ] = "poisson",
    length_cv: Annotated[
        float, typer.Option(help="how much tokens in and out differ between requests: coefficient of variation")
    ] = 0.0,
    cached: Annotated[float, typer.Option(help="share of the prompts' tokens that the prefix cache holds")] = 0.0,
    warm_up: Annotated[int, typer.Option(min=0, help="first requests that are not counted")] = 0,
    drain: Annotated[int, typer.Option(min=0, help="last requests that are not counted")] = 0,
    seed: Annotated[int, typer.Option(help="of arrivals and lengths")] = 0,
    slo: Annotated[
        str | None, typer.Option(help="find the highest rate that keeps it: ttft=500ms,tpot=40ms,e2e=10s")
    ] = None,
    keep: Annotated[float, typer.Option(help="share of the requests that must keep the --slo")] = 0.9,
    load: Annotated[str | None, typer.Option(help="with --slo: also the GPUs that such a rate needs")] = None,
    price_per_hour: Annotated[
        float | None, typer.Option(help="with --slo: dollars for an hour of one GPU, for the cost of a million tokens")
    ] = None,
    search: Annotated[
        bool, typer.Option("--search", help="with --load: only the cheapest of all combinations, the others not played")
    ] = False,
    figure: Annotated[
        Path | None, typer.Option(help="with --slo: draw latency over the rate, as .svg, .pdf, .png or .pgf")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Time to first token, time per token, tokens a second.

    Of a served language model; also by GPU and dollar, and the largest batch. Clients ask one request after the other
    (--batch), or requests come at a rate (--rate); --slo finds the highest rate that keeps promised latencies.
    Example: rooflinekit serve llama-3.1-8b --gpu h100-sxm5-80gb --batch 8,64 --input 1024
    """
    if not gpu and not cluster:
        raise InputError(
            "--gpu is missing: name one, such as --gpu nvidia-l4 (rooflinekit devices lists them), or a --cluster"
        )
    from rooflinekit.serving.decoder import Decoder

    decoder = Decoder.from_config(config, **({"weights": weights.split(",")[0]} if weights else {}))
    options = EngineOptions(
        engine=engine, host_work=host_work, policy=policy, step_tokens=step_tokens, chunks=chunks, reserve=reserve,
        sequences=sequences, memory_share=memory_share, graph_sizes=graph_sizes, sums=sums, heads=heads,
        draft=draft,
        draft_tokens=draft_tokens, acceptance=acceptance, adapters=adapters, adapter_rank=adapter_rank,
        prefill_engines=prefill_engines, decode_engines=decode_engines, prefill_tp=prefill_tp, link=link,
    )  # fmt: skip
    found = places(gpu or (), cluster or (), (tp, ep, dp), (weights or decoder.weights, kv), options.engines())
    limits = power_limit.split(",") if power_limit else [None]
    found = [{**place, "power_limit": watts, "sm_clock": sm_clock} for place in found for watts in limits]
    apart = options.disaggregation()
    rates = Rates(
        rate=rate, requests=requests, arrivals=arrivals, length_cv=length_cv, cached=cached, warm_up=warm_up,
        drain=drain, seed=seed, slo=slo, keep=keep, load=load, price_per_hour=price_per_hour, search=search,
        figure=figure,
    )  # fmt: skip
    if rates.asked:
        found = [{**place, "disaggregation": apart} for place in found]
        serve_rates(decoder, found, rates, (_one("--input", input_tokens), output), as_json)
        return
    if apart is not None:
        raise InputError("--prefill-engines: needs requests at a rate: give --rate, --requests FILE or --slo")
    _closed(decoder, found, (numbers("--input", input_tokens), numbers("--batch", batch), output), price, as_json)


def _closed(
    decoder: Decoder,
    places: list[dict[str, Any]],
    asked: tuple[list[int], list[int], int],
    price: float | None,
    as_json: bool,
) -> None:
    """Clients that ask one request after the other."""
    from rooflinekit.api.serve import serve as served
    from rooflinekit.present.text.serving import Refused

    inputs, batches, output = asked
    found: list[Serving] = []
    refused: list[Refused] = []
    for place, tokens, clients in product(places, inputs, batches):
        try:
            found.append(served(decoder, **place, batch=clients, input=tokens, output=output, price_usd=price))
        except (CapacityError, FormatError) as error:
            # One that cannot is a row; the others are what was asked for.
            where = str(place["gpu"] or place["cluster"])
            refused.append(Refused(gpu=where, clients=clients, input=tokens, output=output, why=error))
    if not found:
        raise refused[0].why
    if as_json:
        print_json(
            "serve", {"servings": [one.to_dict() for one in found], "refused": [one.to_dict() for one in refused]}
        )
        return
    _print(found, refused)


def _one(option: str, text: str) -> int:
    found = numbers(option, text)
    if len(found) > 1:
        raise InputError(f"{option} {text!r}: with --rate, --requests FILE or --slo, expected one number")
    return found[0]


def _print(found: list[Serving], refused: list[Refused]) -> None:
    from rooflinekit.present.text.serving import print_servings
    from rooflinekit.present.text.tables import console

    if len(found) == 1 and not refused:
        console().print(str(found[0]), markup=False, soft_wrap=True)
        return
    print_servings(found, refused)
