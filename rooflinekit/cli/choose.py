"""The subcommands that help to choose: among GPUs, sizes, ways to run, limits of power, prices."""

from __future__ import annotations

import contextlib
import json
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import rooflinekit as rk
from rooflinekit.api.names import STRATEGIES
from rooflinekit.api.workload import Workload
from rooflinekit.cli.command import Json, Options, Tables, say, tell
from rooflinekit.cli.options import (
    CLUSTERS,
    HOSTS,
    LISTED,
    MEASURED,
    BesideCluster,
    Carbon,
    Limits,
    Measured,
    MeasuredOn,
    Prices,
    Purchase,
    Rank,
    StrategyName,
    Target,
    changes_of,
    devices_of,
    needs,
    say_notes,
)
from rooflinekit.cli.parse import integers, quantity_of
from rooflinekit.cli.workload import NO_GPU, describes_workload
from rooflinekit.errors import InputError, SweepError, printable
from rooflinekit.present import text
from rooflinekit.present.text.form import FORM

if TYPE_CHECKING:
    from rooflinekit.study.compare.limits import PowerLimits
    from rooflinekit.study.sweep.plan import Plan


@describes_workload(needs_gpu=False)
def compare(
    workload: Workload,
    target: Target,
    sort: Annotated[str, "the order: time, per-dollar, per-watt, share-of-peak, price, energy or cost"] = "time",
    vendor: Annotated[str | None, "without --gpu: only GPUs of this vendor"] = None,
    architecture: Annotated[str | None, "without --gpu: only GPUs of this architecture or compute capability"] = None,
    memory_min: Annotated[
        str | None, "--memory-min SIZE", 'without --gpu: only GPUs with this much memory or more, "40 GB"'
    ] = None,
    *,
    measured: Measured,
    prices: Prices,
    limits: Limits,
) -> Tables:
    """Compare one workload on many GPUs, and explain their order.

    Without --gpu it compares every shipped GPU. Prices are those at launch, unless --price h100=2.99 gives the dollars
    of an hour. With --measured, a step that was timed on one GPU corrects all predictions, as in `rooflinekit
    transfer`.
    Example: rooflinekit compare timm:resnet50 --batch 32 --memory-min "40 GB"
    """
    filters = {"vendor": vendor, "architecture": architecture, "memory_min": memory_min}
    if workload.gpus and any(filters.values()):
        given = ", ".join(f"--{name.replace('_', '-')}" for name, value in filters.items() if value)
        raise InputError(f"{given}: filters choose among all GPUs; leave out them or --gpu")
    on = workload if workload.gpus else workload.on_offered(**filters)
    machines, host, execution = on.setting()
    step = measured.step(on)
    pricing = prices.pricing() if prices.asked else None
    found = rk.compare_gpus(
        workload.untraced(target), gpus=machines, host=host, execution=execution, sort=sort, measured=step,
        price=pricing, max_watts=limits.watts, max_cost=limits.max_cost,
    )  # fmt: skip
    if pricing is not None:
        say_notes(pricing, [p.machine.device for p in found.predictions])
    return Tables("compare", found.to_dict, lambda: text.choices.print_gpu_comparison(found))


@describes_workload(needs_gpu=False)
def transfer(
    workload: Workload,
    target: Target,
    measured: Annotated[str, "--measured TIME|FILE", MEASURED],
    measured_on: MeasuredOn = None,
    there: Annotated[
        list[str] | None, "--there NAME=VALUE", "how the predicted step differs: batch=64, execution=compiled, …"
    ] = None,
    to_host: Annotated[str | None, "the CPU of the predicted step; by default that of --host", HOSTS] = None,
    cluster: Annotated[
        str | None,
        "--cluster NAME|FILE.yaml",
        "predict for several GPUs, instead of --gpu; needs --mode training",
        CLUSTERS,
    ] = None,
    gpus: BesideCluster = None,
    strategy: Annotated[str | None, f"with --cluster: {STRATEGIES}"] = None,
    mark: Annotated[str | None, "with a trace: the record_function that marks a step"] = None,
    rank: Rank = None,
) -> Tables:
    """Predict a step on another GPU from its measured time on yours.

    --gpu (or --cluster) names the GPU to predict for, --measured-on the one that you have. All other options describe
    the step that was measured.
    Example: rooflinekit transfer timm:resnet50 --batch 64 --measured '31.2 ms' --measured-on rtx-3090 --gpu rtx-4090
    """
    from rooflinekit.api.compare import transferred, transferred_to_cluster

    if cluster is not None:
        workload.check_alone()
        workload.refuse("a step on several GPUs")
    elif not workload.gpus:
        raise InputError(NO_GPU)
    if cluster is None:
        needs("--cluster", {"gpus": gpus, "strategy": strategy})
    changes = changes_of("--there", there or ())
    step = Measured(measured=measured, measured_on=measured_on).step(workload, mark=mark, rank=rank)
    assert step is not None
    if cluster is not None:
        ((source,),) = workload.on(step.device.name).predict(target, sizes_open=True)
        moved = transferred_to_cluster(
            step.evidence, source, changes, cluster=cluster, gpus=gpus, strategy=strategy,
            host=to_host or workload.named_host,
        )  # fmt: skip
        return Tables("parallel", moved.to_dict, lambda: text.steps.print_step(moved))
    names = [device.name for device in workload.devices()]
    both = workload.on(*dict.fromkeys([measured_on or step.device.name, *workload.gpus]))
    (predictions,) = both.predict(target, sizes_open=any(name in workload.sizes for name in changes))
    plain = {p.machine.device.name: p for p in predictions}
    same = [plain[name] for name in names]
    found = transferred(step.evidence, plain[step.device.name], same, changes, to_host)
    return Tables(
        "transfer",
        lambda: {"predictions": [p.to_dict() for p in found]},
        lambda: text.predictions.print_predictions(found),
    )


@describes_workload()
def advise(
    workload: Workload,
    target: Target,
    other_gpu: Annotated[list[str] | None, "--other-gpu GPU", "a GPU that you could change to; repeatable"] = None,
    *,
    measured: Measured,
) -> Tables:
    """List what would make a step faster, ranked by the time it saves.

    It predicts the step again with each change: batch, layout, autocast, compile, CUDA graph, fused optimizer, another
    GPU.
    Example: rooflinekit advise timm:resnet50 --batch 32 --gpu nvidia-l4 --other-gpu nvidia-l40s
    """
    if len(workload.gpus) != 1:
        raise InputError(
            f"--gpu: advice is for one GPU; got {len(workload.gpus)}; name others that you could change to as "
            "--other-gpu"
        )
    others = workload.devices(other_gpu or ())
    step = measured.step(workload)
    ((prediction,),) = workload.predict(target)
    found = rk.advise(prediction, others, measured=step)
    return Tables("advise", found.to_dict, lambda: text.choices.print_advice(found))


class Where(Options):
    """Where a sweep or a search runs beside GPUs, and which sizes go together."""

    cluster: Annotated[
        list[str] | None,
        "--cluster NAME|FILE.yaml",
        "predict training steps on several GPUs, instead of --gpu; repeatable",
    ] = None
    gpus: Annotated[str | None, "--gpus COUNTS", "with --cluster: how many GPUs, 1,2,4 or 1:8; by default all"] = None
    strategy: Annotated[str | None, f"with --cluster: a list of {STRATEGIES}"] = None
    zip: Annotated[
        list[str] | None,
        "--zip NAME,NAME",
        "sizes whose lists are walked together, instead of in every combination; repeatable",
    ] = None

    def plan(self, workload: Workload, target: str, *, memory: bool = True) -> Plan:
        """The sweep that the options describe."""
        from rooflinekit.api.sweep import Places, check_sizes

        executions = workload.executions
        chosen = executions if len(executions) > 1 else executions[0]
        groups = [tuple(word.strip() for word in names.split(",")) for names in self.zip or ()]
        check_sizes(workload.lists, groups)
        if self.cluster:
            workload.check_alone()
            workload.check_trains()
            workload.refuse("a step on several GPUs")
            places = Places(
                gpus=None if self.gpus is None else integers("--gpus", self.gpus), clusters=self.cluster,
                strategies=None if self.strategy is None else [word.strip() for word in self.strategy.split(",")],
                host=workload.named_host, execution=chosen,
            )  # fmt: skip
            places.check()
        else:
            needs("--cluster", {"gpus": self.gpus, "strategy": self.strategy})
            if not workload.gpus:
                raise InputError(f"{NO_GPU}, or --cluster")
            machines, host, _ = workload.running(executions[0].backend).setting()
            places = Places(gpus=machines, host=host, execution=chosen)
        (graph,) = workload.trace(target, sizes_open=True)
        return places.plan(graph, workload.lists, memory=memory, together=groups)


@describes_workload(many_sizes=True, needs_gpu=False)
def sweep(
    workload: Workload,
    target: Target,
    where: Where,
    out: Annotated[
        Path | None, "--out -o", "the file to write: .csv, .json, or a folder .parquet, which a second run continues"
    ] = None,
    workers: Annotated[int | None, "how many processes; by default one for each core in large sweeps"] = None,
    memory: Annotated[bool, "also give the memory, and whether it fits"] = True,
    as_json: Json = False,
) -> Tables | None:
    """Predict at many sizes, on many GPUs, in several ways of execution.

    Each prediction is a row. Sizes are lists (1,2,4) and ranges (1:64, 8:4096:8); --execution may be a list, too. With
    --cluster and --mode training it predicts steps on several GPUs by every --strategy.
    Example: rooflinekit sweep timm:resnet50 --batch 1,2,4:64:4 --gpu nvidia-l4 --gpu nvidia-t4
    """
    from rooflinekit.api.sweep import check_out, check_workers, run_plan

    check_workers(None, workers)
    if out is not None:
        check_out(out)
        if as_json or text.tables.whole():
            form = "json" if as_json else FORM.get()
            raise InputError(f"--{form} prints, and --out writes: give one of the two")
    plan = where.plan(workload, target, memory=memory)
    with _told(out):
        found = run_plan(plan, out, workers=workers)
    if out is not None:
        say(f"{plan.rows} rows written to {out}")
        return None
    shown = found if found["problem"].any() else found.drop(columns="problem")
    return Tables(
        "sweep",
        lambda: {"rows": json.loads(found.to_json(orient="records", double_precision=15))},
        lambda: text.choices.print_rows(shown, workload.heading(plan.cases[0].graph)),
    )


@contextlib.contextmanager
def _told(out: Path | None) -> Iterator[None]:
    """What was met on the way, a line each; an interrupt says what is not lost."""
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: tell(message)
        try:
            yield
        except KeyboardInterrupt:
            if out is not None:
                print(
                    f"\nfinished pieces of {printable(str(out))} are kept; the same command continues", file=sys.stderr
                )
            raise
        except MemoryError:
            kept = "" if out is None or out.suffix == ".parquet" else f"finished pieces of {out} are kept; "
            raise SweepError(
                f"memory ran out: {kept}take fewer sizes, or --out NAME.parquet, which never holds all rows at once"
            ) from None


@describes_workload(many_sizes=True, needs_gpu=False)
def search(
    workload: Workload,
    target: Target,
    where: Where,
    minimize: Annotated[str | None, "time, dollars, memory, price, energy or cost of a sample"] = None,
    maximize: Annotated[str | None, "throughput; this is the default goal"] = None,
    require: Annotated[
        list[str] | None, "--require BOUND", "a bound: 'time<20 ms', 'throughput>=1000', 'batch>=8'; repeatable"
    ] = None,
    *,
    prices: Prices,
    limits: Limits,
    measured: Measured,
) -> Tables:
    """Find the fastest, cheapest or smallest configuration that fits.

    Without --gpu or --cluster it looks at every shipped GPU. Sizes to choose from are lists (1,2,4) and ranges (1:64,
    8:4096:8); --execution may be a list, too. With a price of an hour (--price, --price-per-hour, --prices), `dollars`
    is the cost of a sample; without, it is the launch price divided by the throughput.
    Example: rooflinekit search timm:resnet50 --batch 1:256 --gpu rtx-3090 --gpu rtx-4090 --minimize dollars
    --require 'time<20 ms'
    """
    from rooflinekit.api.sweep import correction_in, goal_of, requirements_of, search_plan

    # what can be wrong is looked at before the slow part
    goal = goal_of(minimize, maximize)
    asked = [*(require or ())]
    if limits.watts is not None:
        asked.append(f"power<={limits.watts:g} W")
    if limits.max_cost is not None:  # of a million samples; `cost` is of one
        asked.append(f"cost<={limits.max_cost / 1e6:g}")
    requirements_of(asked, tuple(workload.lists))
    if not (workload.gpus or where.cluster):
        workload = workload.on_offered()
    devices = devices_of(workload.gpus, where.cluster or (), allow_draft=workload.allow_draft)
    known, currency = dict[str, float](), None  # what an hour of each device costs
    if prices.asked:
        pricing = prices.pricing()
        say_notes(pricing, devices)
        known = {device.name: hour for device in devices if (hour := pricing.hour_of(device)) is not None}
        currency = pricing.currency
    step = measured.step(workload)
    plan = where.plan(workload, target)
    found = search_plan(plan, goal, asked, known, correction_in(plan, step), currency)
    heading = workload.heading(plan.cases[0].graph)
    return Tables("search", found.to_dict, lambda: text.choices.print_found(found, heading))


@describes_workload(needs_gpu=False)
def power(
    workload: Workload,
    target: Target,
    step: Annotated[str, "--step WATTS", "the watts between one power limit and the next"] = "25 W",
    rack: Annotated[str | None, "--rack WATTS", "also print what a rack with so many watts does in a day"] = None,
    pue: Annotated[float, "watts of the whole rack (with host, fans and supply) divided by those of its GPUs"] = 1.0,
    cluster: Annotated[
        str | None,
        "--cluster NAME|FILE.yaml",
        f"instead of --gpu: {LISTED}; a training step on its GPUs, all under the same limit",
        CLUSTERS,
    ] = None,
    gpus: BesideCluster = None,
    strategy: StrategyName = "ddp",
) -> Tables:
    """Predict time and energy at every power limit, and find the best.

    Example: rooflinekit power timm:resnet50 --batch 64 --gpu nvidia-a40
    """
    from rooflinekit.api.parallel import power_limits_together

    if "power_limit" in workload.limits:
        raise InputError("--power-limit: `power` tries every limit; leave it out, or ask `predict`")
    if (cluster is None) == (not workload.gpus):
        raise InputError("--gpu or --cluster: expected one of the two" if cluster else NO_GPU)
    if cluster is None:
        needs("--cluster", {"gpus": gpus, "strategy": strategy != "ddp"})
    if rack is None:
        needs("--rack", {"pue": pue != 1})
    step_w = quantity_of("--step", step, "W")
    rack_w = None if rack is None else quantity_of("--rack", rack, "W")
    found: list[PowerLimits[Any]]
    if cluster is None:
        found = [rk.power_limits(p, step_w) for p in workload.predict(target)[0]]
    else:
        at = workload.team(target, cluster=cluster, gpus=gpus, strategy=strategy)
        found = [power_limits_together(at, at(), step_w)]
    racks = [None if rack_w is None else one.rack(rack_w, pue) for one in found]

    def told() -> None:
        for one, held in zip(found, racks, strict=True):
            text.choices.print_limits(one, held)

    return Tables(
        "power", lambda: {"studies": [one.to_dict(held) for one, held in zip(found, racks, strict=True)]}, told
    )


@describes_workload(needs_gpu=False)
def cost(
    workload: Workload,
    target: Target,
    purchase: Purchase,
    samples: Annotated[float | None, "samples of an epoch or a run, such as 1281167 or 3e9, to print its cost"] = None,
    carbon: Carbon = None,
    *,
    limits: Limits,
    cluster: Annotated[
        list[str] | None, "--cluster NAME|FILE.yaml", f"price a training step on {LISTED}; repeatable", CLUSTERS
    ] = None,
    gpus: BesideCluster = None,
    strategy: StrategyName = "ddp",
) -> Tables:
    """Price a step, a million samples or a run, cheapest first.

    It uses only the prices that you give. With --mode training it also prices steps on each --cluster.
    Example: rooflinekit cost timm:resnet50 --batch 32 --gpu l4 --gpu t4 --prices examples/prices.yaml
    --samples 1281167
    """
    if not workload.gpus and not cluster:
        raise InputError(NO_GPU)
    if cluster:
        workload.check_trains()
    else:
        needs("--cluster", {"gpus": gpus, "strategy": strategy != "ddp"})
    purchase.check(samples=samples, carbon=carbon)
    pricing, devices = purchase.pricing(), devices_of(workload.gpus, cluster or (), allow_draft=workload.allow_draft)
    for device in devices:  # what has no price is told before the slow part
        pricing.of(device)
    say_notes(pricing, devices)
    watts = limits.watts
    steps: list[Any] = workload.predict(target, sizes_open=bool(cluster))[0] if workload.gpus else []
    if cluster:
        at = workload.team(target, gpus=gpus, strategy=strategy)
        steps += [at(cluster=name) for name in cluster]
    found = rk.costs(steps, pricing, samples=samples, carbon=carbon, max_watts=watts, max_cost=limits.max_cost)
    first = steps[0] if workload.gpus else steps[0].shares[0].prediction
    heading = workload.heading(first.graph)
    return Tables("cost", found.to_dict, lambda: text.choices.print_costs(found, heading))
