"""The subcommand that lists clusters, or shows one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rooflinekit.cli.options import JsonOption, print_json

if TYPE_CHECKING:
    from rooflinekit.hardware.cluster import Cluster


def clusters(
    name: Annotated[str | None, typer.Argument(metavar="[NAME|FILE.yaml]", help="one of them: links, sources")] = None,
    as_json: JsonOption = False,
) -> None:
    """The clusters that are known, or one of them.

    Which devices, joined by what. Bandwidths are of one direction.
    Example: rooflinekit clusters dgx-h100
    """
    from rooflinekit.hardware import specs

    found = specs.clusters() if name is None else (specs.load_cluster(name),)
    if as_json:
        documents = [_document(one) for one in found]
        if name is None:
            print_json("clusters", {"clusters": documents})
        else:
            print_json("cluster", {"cluster": documents[0]})
        return
    from rooflinekit.present.text import devices as cluster_text

    if name is None:
        cluster_text.print_clusters(found)
    else:
        cluster_text.print_cluster(found[0])


def _document(cluster: Cluster) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(cluster.model_dump_json(by_alias=True, exclude_none=True))
    return document
