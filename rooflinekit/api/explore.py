"""The walk that ends in a page to explore with: trace each step, predict every state, write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rooflinekit.api.keywords import with_named
from rooflinekit.api.predict import host_of, machines_of
from rooflinekit.api.sweep import Workloads, opened_graphs
from rooflinekit.errors import InputError
from rooflinekit.hardware.device import Device
from rooflinekit.hardware.host import Host
from rooflinekit.hardware.specs import DEFAULT_HOST
from rooflinekit.ir.arguments import checked
from rooflinekit.ir.inputs import Mode, Release
from rooflinekit.model.machine import Machine
from rooflinekit.present.figures.records.figure import Roof
from rooflinekit.present.figures.records.roofs import main_roofs
from rooflinekit.present.page.explore import Page, explore_page
from rooflinekit.present.page.templating import Origin, check_path
from rooflinekit.step.entry import as_run, issues_for
from rooflinekit.step.execution import Backend, Execution, execution_of
from rooflinekit.study.compare.cost import Pricing
from rooflinekit.study.sweep.explored import Explored, explored

if TYPE_CHECKING:
    from rooflinekit.tracing.tracer import Format, Given, Loss, OptimizerFactory

POWER = (1.0, 0.85, 0.7, 0.55)


@checked
def explore(
    workload: Workloads,
    *inputs: Any,
    gpus: Sequence[str | Path | Device],
    hosts: str | Path | Host | Sequence[str | Path | Host] = DEFAULT_HOST,
    execution: Execution | Backend | Sequence[Execution | Backend] = ("eager", "compiled"),
    power: Sequence[float] = POWER,
    pricing: Pricing | None = None,
    out: str | Path | None = None,
    mode: Mode = "inference",
    dtype: Format | None = None,
    autocast: Format | None = None,
    optimizer: OptimizerFactory | str | None = None,
    loss: Loss | str | None = None,
    like: str | Release | None = None,
    name: str | None = None,
    **options: Given | range,
) -> Page:
    """One HTML page with a slider for each size and a switch for all else; in a notebook it shows itself.

    workload: a Graph, or a model followed by its inputs, or several of them by name ("inference", "training, bf16"),
        which then are one switch. gpus: names, aliases, paths of specifications, or Devices, shown side by side.
    hosts, execution: one, or a list. power: limits as shares of each board's own. pricing: of an hour of each GPU, to
        begin with; the page takes others.
    out: a file to write, .html. options: for each named size a number, list or range (by default the page chooses);
        mode, dtype, autocast, optimizer, loss, like, name: with a model, as in `trace`, as its other options.

    Every state is predicted, as `predict` does it; times that interpolation gives to within 0.4 % are left out, and
    the page marks them. Raises what `sweep` raises, and OutputError for a page of more than 2 MB.

    >>> page = rk.explore("timm:resnet50", gpus=["nvidia-l4", "nvidia-t4"], out="resnet50.html")  # doctest: +SKIP
    """
    if out is not None:
        check_path(out)
    given = with_named(options, dtype=dtype, autocast=autocast, optimizer=optimizer, loss=loss, like=like, name=name)
    ways = [execution_of(one) for one in ([execution] if isinstance(execution, str | Execution) else execution)]
    listed = [hosts] if isinstance(hosts, str | Path | Host) else [*hosts]
    machines = machines_of(gpus)
    graphs, sizes = opened_graphs(explore, workload, inputs, mode, given, None)
    named = graphs if isinstance(graphs, Mapping) else {graphs.mode: graphs}
    name = " and ".join(dict.fromkeys(graph.name for graph in named.values()))
    grid = explored(named, machines, ways, [host_of(one) for one in listed], power, sizes)
    page = page_of(grid, name, pricing, Origin())
    if out is not None:
        page.save(out)
    return page


def page_of(grid: Explored, name: str, pricing: Pricing | None, origin: Origin) -> Page:
    """The page of a grid that was predicted. Raises what `explore` raises."""
    roofs = [[_roofs(grid, name, machine) for machine in grid.machines] for name in grid.workloads]
    devices = [machine.device for machine in grid.machines]
    prices = [_price(pricing, device) for device in devices]
    currency = "USD" if pricing is None else pricing.currency
    notes = "" if pricing is None else " ".join(f"{note}." for note in pricing.notes(devices))
    return explore_page(grid, name, roofs, prices, currency, notes, origin)


def _roofs(grid: Explored, workload: str, machine: Machine) -> tuple[Roof, Roof]:
    """Those of the step at its smallest sizes."""
    sizes = {name: values[0] for name, values in grid.sizes[workload].items()}
    graph = grid.workloads[workload].at(**sizes)
    issues = issues_for(graph, machine.device, as_run(graph, grid.executions[0]))
    return main_roofs((kernel for issue in issues for kernel in issue.kernels), machine)


def _price(pricing: Pricing | None, device: Device) -> float | None:
    """Of an hour; None where the table has none."""
    try:
        return None if pricing is None else pricing.of(device).hour
    except InputError:
        return None
