"""What several subcommands take and print alike, and the names that a shell completes."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated

import typer

from rooflinekit.present.text.progress import following


def gpu_names(incomplete: str) -> list[str]:
    """Shipped devices whose name begins so."""
    from rooflinekit.hardware.specs import device_names

    return [name for name in device_names() if name.startswith(incomplete)]


def host_names(incomplete: str) -> list[str]:
    """Shipped hosts whose name begins so."""
    from rooflinekit.hardware import specs

    return [name for name in specs.host_names() if name.startswith(incomplete)]


def model_names(incomplete: str) -> list[str]:
    """Language models whose name begins so."""
    from rooflinekit.published.models import published_names

    return [name for name in published_names() if name.startswith(incomplete)]


def cluster_names(incomplete: str) -> list[str]:
    """Shipped clusters whose name begins so."""
    from rooflinekit.hardware import specs

    return [name for name in specs.cluster_names() if name.startswith(incomplete)]


CLUSTERS = "`rooflinekit clusters` lists them"
TARGET_HELP = (
    "timm:NAME, transformers:NAME or transformers:config.json, a language model such as llama-3.1-8b, FILE.py:NAME, "
    "or package.module:name"
)
MODEL_HELP = "a name such as llama-3.1-70b hf:OWNER/NAME of HuggingFace's cache, or a config.json's path"

TargetArgument = Annotated[str, typer.Argument(metavar="TARGET", help=TARGET_HELP)]
ModelArgument = Annotated[str, typer.Argument(metavar="MODEL", autocompletion=model_names, help=MODEL_HELP)]
JsonOption = Annotated[bool, typer.Option("--json", help="print JSON and nothing else")]
DraftOption = Annotated[
    bool, typer.Option("--allow-draft", help="accept a specification marked as a draft: its numbers are not confirmed")
]
ClusterOption = Annotated[str, typer.Option(metavar="NAME|FILE.yaml", autocompletion=cluster_names, help=CLUSTERS)]
ForceOption = Annotated[bool, typer.Option("--force", help="replace the file")]


#: The documents that `--json` prints, and their versions, which rise when a field goes or changes its meaning, and not
#: when one is added. Their schemas are in docs/schemas, made by docs/make_schemas.py.
DOCUMENTS = {
    "advise": 1,
    "calibrate": 1,
    "campaign-from-trace": 1,
    "campaign-summarize": 1,
    "campaign-validate": 1,
    "check": 1,
    "cluster": 1,
    "clusters": 1,
    "collective": 1,
    "compare": 1,
    "cost": 1,
    "crossover": 1,
    "device": 1,
    "devices": 1,
    "doctor": 1,
    "explain": 1,
    "fit": 1,
    "fit-into": 1,
    "guard": 1,
    "host": 1,
    "hosts": 1,
    "measure": 1,
    "own-fit": 1,
    "parallel": 1,
    "power": 1,
    "predict": 1,
    "profile": 1,
    "search": 1,
    "serve": 1,
    "serve-capacity": 1,
    "serve-rates": 1,
    "specs": 1,
    "summary": 1,
    "sweep": 1,
    "train": 1,
    "transfer": 1,
}


def typed() -> str:
    """The command as it was typed, by which an answer is made again."""
    return shlex.join(["rooflinekit", *sys.argv[1:]])


def print_json(name: str, document: Mapping[str, object]) -> None:
    """The one document that `--json` asks for, with the name and version of its schema."""
    whole = {"schema": f"rooflinekit/{name}/{DOCUMENTS[name]}", **document}
    print(json.dumps(whole, indent=2, ensure_ascii=False))


@contextmanager
def progress_line(first: str) -> Iterator[Callable[[str], None] | None]:
    """A line on standard error, with the time passed, that says what is being done; None where it is no terminal."""
    with following("SpinnerColumn", "text", "TimeElapsedColumn", description=first) as update:
        yield update and (lambda doing: update(description=doing))
