"""The walks that end in pages: a report for a design review, and a page to explore with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rooflinekit.api.keywords import with_named
from rooflinekit.api.measured import Correction, corrected
from rooflinekit.api.predict import machines_of
from rooflinekit.api.sweep import Workloads, opened_graphs
from rooflinekit.files import write_text
from rooflinekit.hardware.device import Device
from rooflinekit.hardware.host import Host
from rooflinekit.hardware.specs import DEFAULT_HOST, device_of, devices, host_of
from rooflinekit.ir.arguments import checked
from rooflinekit.ir.inputs import Mode, Release
from rooflinekit.present.figures.records.figure import Roof
from rooflinekit.present.figures.records.roofs import main_roofs
from rooflinekit.present.page import report
from rooflinekit.present.page.explore import Page, explore_page
from rooflinekit.present.page.templating import Origin, check_path
from rooflinekit.step.entry import as_run, issues_for
from rooflinekit.step.execution import Backend, Execution, execution_of
from rooflinekit.step.prediction import Prediction
from rooflinekit.study.compare.cost import Pricing
from rooflinekit.study.compare.gpus import GpuComparison, compare_machines, shortlist, shortlist_rule
from rooflinekit.study.compare.limits import a_dozenth, power_limits
from rooflinekit.study.explain.advice import advise
from rooflinekit.study.explain.explanation import explain
from rooflinekit.study.sweep.explored import Explored, explored
from rooflinekit.timing.machine import Machine

if TYPE_CHECKING:
    from rooflinekit.tracing.tracer import Format, Given, Loss, OptimizerFactory


@checked
def save_report(
    prediction: Prediction,
    path: str | Path,
    *,
    gpus: Sequence[str | Path | Device] | None = None,
    against: Prediction | None = None,
    advice: bool = True,
    measured: object = None,
    measured_on: str | Path | Device | None = None,
    measured_at: Mapping[str, Any] | None = None,
    command: str = "",
    python: str = "",
    progress: Callable[[str], None] | None = None,
) -> Path:
    """Writes a prediction as one HTML page: summary, roofline, time line, memory, energy, GPUs, advice, sources.

    gpus: names, paths of specifications, or Devices to compare with; by default a shortlist (docs/report.md has its
        rule), and none for an empty list or a prediction on a CPU.
    against: another network's prediction, to which the page explains the difference.
    advice: whether changes are tried, which traces the model a few times more.
    measured, measured_on, measured_at: a step that was timed somewhere, on which all of the page then rests but for
        `against`; see `compare_gpus`.
    command, python: how the report is made again, as a command line and as code.
    progress: called with what is being done.

    The file needs no network and holds no scripts but its own. Returns the path. Raises OutputError for a name that
    does not end in .html or a place that cannot be written, ComparisonError for predictions that cannot be compared,
    and what `load_device` raises.
    """
    say = progress or (lambda doing: None)
    target = check_path(path)
    resting, correct = corrected(prediction, measured, measured_on, measured_at)
    explanation = explain(resting, against) if against is not None else None
    say("comparing GPUs")
    comparison, rule = _compared(prediction, gpus, correct)
    say("looking for what would make it faster")
    found = advise(prediction, corrected=correct) if advice else None
    say("trying limits of power")
    drawn = prediction.energy if prediction.energy_j else None  # None: no power is stated, or nothing is drawn
    limits = None if drawn is None else power_limits(prediction, a_dozenth(drawn.board_w, 5.0))
    say("writing the page")
    findings = report.Findings(comparison=comparison, rule=rule, advice=found, explanation=explanation, limits=limits)
    write_text(report.page(resting, findings, Origin(command=command, python=python)), target)
    return target


def _compared(
    p: Prediction, gpus: Sequence[str | Path | Device] | None, correct: Correction | None
) -> tuple[GpuComparison | None, str]:
    """The comparison, and in words how its GPUs were chosen; None where there is nothing to compare."""
    subject = p.machine.device
    if gpus is None:
        chosen = shortlist(subject, devices()) if subject.kind == "gpu" else (subject,)
        rule = shortlist_rule(subject)
    else:
        named = [device_of(gpu) for gpu in gpus]
        chosen = (subject, *(device for device in named if device.name != subject.name))
        rule = "The GPUs named for this report."
    if len(chosen) == 1:
        return None, ""
    machines = machines_of([p.machine, *chosen[1:]], burst=p.machine.burst)
    return compare_machines(p.graph, machines, p.host, p.execution, corrected=correct), rule


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
    mode: Mode | None = None,
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
    executions = [execution_of(one) for one in ([execution] if isinstance(execution, str | Execution) else execution)]
    listed = [hosts] if isinstance(hosts, str | Path | Host) else [*hosts]
    machines = machines_of(gpus)
    graphs, sizes = opened_graphs(explore, workload, inputs, mode, given, None)
    named = graphs if isinstance(graphs, Mapping) else {graphs.mode: graphs}
    grid = explored(named, machines, executions, [host_of(one) for one in listed], power, sizes)
    page = page_of(grid, pricing, Origin())
    if out is not None:
        page.save(out)
    return page


def page_of(grid: Explored, pricing: Pricing | None, origin: Origin) -> Page:
    """The page of a grid that was predicted. Raises what `explore` raises."""
    name = " and ".join(dict.fromkeys(graph.name for graph in grid.workloads.values()))
    roofs = [[_roofs(grid, workload, machine) for machine in grid.machines] for workload in grid.workloads]
    devices = [machine.device for machine in grid.machines]
    prices = [None if pricing is None else pricing.hour_of(device) for device in devices]
    currency = "USD" if pricing is None else pricing.currency
    notes = "" if pricing is None else " ".join(f"{note}." for note in pricing.notes(devices))
    return explore_page(grid, name, roofs, prices, currency, notes, origin)


def _roofs(grid: Explored, workload: str, machine: Machine) -> tuple[Roof, Roof]:
    sizes = {name: values[0] for name, values in grid.sizes[workload].items()}
    graph = grid.workloads[workload].at(**sizes)
    issues = issues_for(graph, machine.device, as_run(graph, grid.executions[0]))
    return main_roofs((kernel for issue in issues for kernel in issue.kernels), machine)
