"""The subcommand that serves a language model."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rooflinekit.cli.guide import Command
from rooflinekit.cli.options import JsonOption, print_json
from rooflinekit.errors import CapacityError, FormatError, InputError

if TYPE_CHECKING:
    from rooflinekit.present.text.serving import Refused
    from rooflinekit.serving.serve import Serving


def register(app: typer.Typer) -> None:
    """Adds the subcommand to the program's."""
    app.command(cls=Command)(serve)


def serve(
    config: Annotated[
        Path, typer.Argument(metavar="CONFIG.json", help="a HuggingFace config.json of a language model")
    ],
    gpu: Annotated[list[str] | None, typer.Option(help="name, alias or specification file; repeatable")] = None,
    batch: Annotated[str, typer.Option(help="clients that ask at once; several as 1,8,64")] = "1",
    input_tokens: Annotated[
        str, typer.Option("--input", "-i", help="tokens of a prompt; several as 1024,4096")
    ] = "1024",
    output: Annotated[int, typer.Option(min=1, help="tokens of an answer")] = 256,
    weights: Annotated[str, typer.Option(help="bf16, fp16, fp8, fp8-dynamic, int8 or int4")] = "bf16",
    kv: Annotated[str, typer.Option(help="format of the cache: bf16, fp16 or fp8")] = "bf16",
    cluster: Annotated[
        list[str] | None, typer.Option(help="name or file of a cluster, whose first GPUs serve; repeatable")
    ] = None,
    tp: Annotated[int, typer.Option(min=1, help="GPUs of the cluster that share each layer")] = 1,
    ep: Annotated[int, typer.Option(min=1, help="parts of the experts over these GPUs; 1: all share each")] = 1,
    host_work: Annotated[
        str, typer.Option("--host-work", help="overlapped with the GPU's, or serial: between its steps")
    ] = "overlapped",
    policy: Annotated[
        str, typer.Option(help="prompts are read in mixed steps, beside sequences that go on, or prefill-first")
    ] = "mixed",
    step_tokens: Annotated[int, typer.Option(min=1, help="most tokens of a step")] = 8192,
    chunks: Annotated[
        bool, typer.Option(help="a prompt is cut where a step's tokens end; otherwise it waits until it fits")
    ] = True,
    sequences: Annotated[int | None, typer.Option(min=1, help="most sequences at once; by default any number")] = None,
    memory_share: Annotated[float, typer.Option(help="of the GPU's memory that the engine takes")] = 0.9,
    price: Annotated[
        float | None, typer.Option(help="dollars for one GPU, bought or for an hour, in the place of its launch price")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Time to first token, time per token, tokens a second.

    Of a served language model; also by GPU and dollar, and the largest batch.
    Example: rooflinekit serve examples/decoders/llama-3.1-8b.json --gpu h100-sxm5-80gb --batch 8,64 --input 1024
    """
    if not gpu and not cluster:
        raise InputError(
            "--gpu is missing: name one, such as --gpu nvidia-l4 (rooflinekit devices lists them), or a --cluster"
        )
    from rooflinekit.api.serve import serve as served
    from rooflinekit.present.text.serving import Refused
    from rooflinekit.serving.decoder import Decoder
    from rooflinekit.serving.settings import Engine

    decoder = Decoder.from_config(config)
    engine = Engine(
        host=host_work,  # type: ignore[arg-type]  # checked there
        policy=policy,  # type: ignore[arg-type]
        step_tokens=step_tokens,
        chunks=chunks,
        sequences=sequences,
        memory_share=memory_share,
    )
    found: list[Serving] = []
    refused: list[Refused] = []
    for one, group in [*((name, None) for name in gpu or ()), *((None, name) for name in cluster or ())]:
        for tokens, clients in product(_numbers("--input", input_tokens), _numbers("--batch", batch)):
            try:
                found.append(
                    served(
                        decoder, one, cluster=group, batch=clients, input=tokens, output=output, weights=weights,
                        kv=kv, tp=tp, ep=ep, engine=engine, price_usd=price,
                    )
                )  # fmt: skip
            except (CapacityError, FormatError) as error:
                # One that cannot is a row; the others are what was asked for.
                refused.append(Refused(gpu=str(one or group), clients=clients, input=tokens, output=output, why=error))
    if not found:
        raise refused[0].why
    if as_json:
        print_json(
            "serve", {"servings": [one.to_dict() for one in found], "refused": [one.to_dict() for one in refused]}
        )
        return
    _print(found, refused)


def _numbers(option: str, text: str) -> list[int]:
    """'1,8' → [1, 8]."""
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = [0]
    if min(numbers) < 1:
        raise InputError(f"{option} {text!r}: expected a positive integer, or several as 1,8,64")
    return numbers


def _print(found: list[Serving], refused: list[Refused]) -> None:
    from rooflinekit.present.text.serving import print_servings
    from rooflinekit.present.text.tables import console

    if len(found) == 1 and not refused:
        console().print(str(found[0]), markup=False, soft_wrap=True)
        return
    print_servings(found, refused)
