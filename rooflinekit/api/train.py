"""The walks of a decoder's training: one step on a layout, and the fastest layouts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from rooflinekit.api.predict import in_base
from rooflinekit.calibrate.fitting.files import constants_for, load_links
from rooflinekit.errors import InputError
from rooflinekit.hardware.cluster import Cluster
from rooflinekit.hardware.host import Host
from rooflinekit.hardware.specs import load_cluster, load_host, members_of
from rooflinekit.ir.arguments import checked
from rooflinekit.model.energy import limited
from rooflinekit.model.machine import Machine
from rooflinekit.serving.decoder import Decoder
from rooflinekit.training.layout import Layout
from rooflinekit.training.pieces import Place
from rooflinekit.training.plan import Planner
from rooflinekit.training.recipe import Recipe, recipe_of
from rooflinekit.training.step import TrainingStep

if TYPE_CHECKING:
    from rooflinekit.training.search import LayoutSearch


@checked
def train(
    decoder: Decoder,
    *,
    cluster: str | Path | Cluster,
    batch: int,
    seq: int,
    gpus: int | None = None,
    layout: Layout | None = None,
    recipe: str | Recipe = "megatron",
    host: str | Path | Host | None = None,
    links: Path | None = None,
    power_limit: str | float | None = None,
    sm_clock: str | float | None = None,
) -> TrainingStep:
    """How long one training step of a decoder takes on a cluster, why, and what memory it needs.

    batch: sequences of all GPUs together; seq: tokens of each. gpus: how many, from the first; by default all. layout:
    how they share the work, see `Layout`. recipe: "megatron", "megatron-2023", "nemo", "nanotron",
    "torchtitan", "torchtitan-compiled", "huggingface", "llm-foundry", "pytorch", or a `Recipe`.
    power_limit, sm_clock: limits of every GPU below its board's own, as text ("250 W", "1.2 GHz") or in W and Hz.

    Raises what `load_cluster` raises, and InputError for sizes that do not divide.

    >>> found = train(Decoder.from_config("config.json"), cluster="dgx-h100", batch=64, seq=4096)  # doctest: +SKIP
    >>> found.total_s, found.mfu, found.memory.allocated  # doctest: +SKIP
    """
    limits = in_base(power_limit, "W"), in_base(sm_clock, "Hz")
    place = place_of(cluster, gpus, host, links, limits)
    _check(batch, seq)
    return Planner(
        decoder=decoder, layout=layout or Layout(), recipe=recipe_of(recipe), batch=batch, seq=seq, place=place
    ).step()  # fmt: skip


@checked
def search_layouts(
    decoder: Decoder,
    *,
    cluster: str | Path | Cluster,
    batch: int,
    seq: int,
    gpus: int | None = None,
    recipe: str | Recipe = "megatron",
    host: str | Path | Host | None = None,
    links: Path | None = None,
    keep: int = 10,
    progress: Callable[[int], None] | None = None,
) -> LayoutSearch:
    """The fastest layouts of a decoder's training that fit: tensor, context, pipeline, virtual stages, experts,
    micro-batch, recomputation, and FSDP.

    Arguments as of `train`. keep: how many of the fastest are worked out in full. progress: called with how many
    layouts have been looked at. Raises what `train` raises, and InputError where nothing fits.
    """
    from rooflinekit.training.search import search_layouts as searched

    _check(batch, seq)
    place = place_of(cluster, gpus, host, links)
    return searched(decoder, recipe_of(recipe), place, batch=batch, seq=seq, keep=keep, progress=progress)


def place_of(
    cluster: str | Path | Cluster, gpus: int | None = None, host: str | Path | Host | None = None,
    links: Path | None = None, limits: tuple[float | None, float | None] = (None, None),
) -> Place:  # fmt: skip
    """A cluster of equal GPUs, ready. limits: of each, in W and Hz. Raises InputError for unequal ones, more than there
    are, and limits that the board cannot hold.
    """
    found = cluster if isinstance(cluster, Cluster) else load_cluster(cluster)
    if len(set(found.device_names)) > 1:
        raise InputError(f"{found.name}: expected equal devices; got {', '.join(sorted(set(found.device_names)))}")
    device = members_of(found)[0]
    own = found.host if host is None else host
    machine = limited(Machine.of(device, constants_for(device)), power_w=limits[0], clock=limits[1])
    return Place.of(
        found, machine, own if isinstance(own, Host) else load_host(own), load_links(links),
        found.size if gpus is None else gpus,
    )  # fmt: skip


def _check(batch: object, seq: object) -> None:
    for name, value in (("batch", batch), ("seq", seq)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InputError(f"{name}: expected an integer of 1 or more; got {value!r}")
