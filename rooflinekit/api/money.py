"""What answers cost: any of them as a job that takes so many GPUs so long."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from rooflinekit.distributed.prediction import SharedStep
from rooflinekit.errors import InputError
from rooflinekit.hardware.prices import price_table as price_table
from rooflinekit.hardware.specs import members_of
from rooflinekit.ir.arguments import checked, expect
from rooflinekit.serving.served import Served
from rooflinekit.step.prediction import Prediction
from rooflinekit.study.compare.cost import Costs, Job, Price, Pricing, check_positive

#: What has a price: a step on one GPU or on several, a decoder's training step, served clients or requests.
Answer: TypeAlias = Prediction | SharedStep | Served | Job


@checked
def costs(
    answers: Answer | Sequence[Answer],
    price: Price | Pricing | Sequence[Price],
    *,
    samples: float | None = None,
    carbon: float | None = None,
    max_watts: float | None = None,
    max_cost: float | None = None,
) -> Costs:
    """What steps and services cost, the cheapest sample or token first.

    price: of one GPU, the same for all (`Price`), one for each answer, or by a table (`Pricing`). samples: of an epoch
    or a run, in what the answers count: samples, or tokens of training and of answers. carbon: kg CO2 a kWh. max_watts,
    max_cost: leave out what draws more on average, all GPUs together, or of which the run (a million, where none is
    named) costs more.

    Raises InputError for answers that count different things, for a GPU without a price, for prices in several
    currencies, and where none is left.

    >>> step = rk.train(decoder, cluster="dgx-h100", batch=128, seq=4096)  # doctest: +SKIP
    >>> rk.costs(step, rk.Price(currency="USD", hour=2.0), samples=1e12).table  # doctest: +SKIP
    """
    listed = [*answers] if isinstance(answers, Sequence) else [answers]
    if isinstance(price, Pricing):
        prices = [_price(one, price) for one in listed]
    else:
        prices = [*price] if isinstance(price, Sequence) else [price] * len(listed)
    expect(len(prices) == len(listed), "price", f"one, or one for each of {len(listed)} answers", prices)
    if len(currencies := sorted({each.currency for each in prices})) != 1:
        raise InputError(f"prices: expected one currency; got {', '.join(currencies) or 'none'}")
    jobs = tuple(map(job_of, listed))
    counted = jobs[0].unit if jobs and jobs[0].unit != "steps" else "samples"
    check_positive({counted: samples, "carbon": carbon, "max watts": max_watts, "max cost": max_cost})
    if len(units := {job.unit for job in jobs}) > 1:
        raise InputError(f"costs: expected steps of one kind; got {' and '.join(sorted(units))}")
    whole = Costs(jobs=jobs, prices=tuple(prices), samples=samples, carbon=carbon)
    return whole.within(max_watts, max_cost)


def job_of(answer: Answer) -> Job:
    """An answer as money sees it."""
    if isinstance(answer, Job):
        return answer
    if isinstance(answer, Prediction):
        return Job.of(answer)
    if isinstance(answer, Served):
        return Job(
            what=answer.gpu if answer.gpus == 1 else f"{answer.gpus} × {answer.gpu}", total_s=answer.played.end_s,
            energy_j=answer.energy_j, batch=answer.tokens_given, unit="tokens", gpus=answer.gpus,
        )  # fmt: skip
    unit, batch = answer.counted
    return Job(
        what=f"{answer.gpus} GPUs of {answer.cluster.name}", total_s=answer.total_s, energy_j=answer.energy_j,
        batch=batch, unit=unit, gpus=answer.gpus,
    )  # fmt: skip


def _price(answer: Answer, pricing: Pricing) -> Price:
    if isinstance(answer, SharedStep):
        return pricing.of_all(members_of(answer.cluster))
    if isinstance(answer, Prediction):
        return pricing.of(answer.machine.device)
    if isinstance(answer, Served):
        return pricing.of(answer.decode.machine.device)
    raise InputError("price: a Job does not say which GPUs it runs on; expected a Price")
