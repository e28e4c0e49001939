"""What serving draws: each step's kernels, and every GPU standing by all the time, between steps too."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from rooflinekit.model.energy import PowerLaw
from rooflinekit.model.roofline import Timing
from rooflinekit.serving.batch_times import BatchTimes
from rooflinekit.serving.engine_steps import EngineSteps, draft_times
from rooflinekit.serving.settings import Engine
from rooflinekit.serving.step_times import StepTimes, part_of
from rooflinekit.step.energy import Draws, kernels_j_of
from rooflinekit.step.energy_together import Member, TeamEnergy, energy_together
from rooflinekit.step.prediction import Prediction
from rooflinekit.units import format_quantity


@dataclass(frozen=True, kw_only=True)
class StepJoules(StepTimes):
    """Joules of one GPU's kernels, beside idling, in the place of their seconds.

    What makes a step's seconds of few that are timed is linear in them, and so in joules.
    """

    def seconds_by_part(self, timings: Sequence[Timing]) -> Mapping[str, float]:
        """Joules of each layer by its name, and of the rest under ""."""
        law = PowerLaw.of(self.machine)
        assert law is not None  # see `joules_of`
        parts = kernels_j_of(timings, self.launched, law)
        found: dict[str, float] = defaultdict(float)
        for i, timing in enumerate(timings):
            found[part_of(timing)] += sum(float(joules[i]) for joules in parts.values())
        return found


def joules_of(engine: Engine, times: StepTimes) -> EngineSteps | None:
    """The joules of the same steps, made of the same graphs, without the CPU; None where no power is stated."""
    if PowerLaw.of(times.machine) is None:
        return None
    draft = draft_times(engine, times)
    return EngineSteps(
        engine=engine, times=BatchTimes(times=_joules(times)), draft=draft and BatchTimes(times=_joules(draft.times))
    )


def _joules(times: StepTimes) -> StepJoules:
    said = {one.name: getattr(times, one.name) for one in fields(times) if not one.name.startswith("_")}
    return StepJoules(**said, _graphs=times._graphs)


def serving_energy(times: StepTimes, kernels_j: float | None, total_s: float, gpus: int) -> TeamEnergy | None:
    """All GPUs over so many seconds, of which each's kernels draw so many joules on average; None where not known."""
    if kernels_j is None:
        return None
    return energy_together([Member(count=gpus, machine=times.machine, kernels_j={"kernels": kernels_j})], total_s)


class ServingDraws(Draws):
    """What answers say of their joules, by what they have: `energy`, and the tokens that were given meanwhile."""

    __slots__ = ()

    energy: TeamEnergy | None  # of all GPUs that share the layers, while they answered; None where no power is stated

    @property
    def tokens_given(self) -> int:
        """Of all answers that `energy` is of."""
        raise NotImplementedError

    @property
    def decode(self) -> Prediction:
        """A step that gives a token to each sequence, by whose interval seconds are off."""
        raise NotImplementedError

    @property
    def joules_per_token(self) -> float | None:
        """Joules of a token of answers, with the reading of prompts and waits."""
        return None if self.energy is None else self.energy.joules / self.tokens_given

    def energy_document(self) -> dict[str, Any]:
        """Ready for JSON."""
        if self.energy is None:
            return {"energy": None, "joules_per_token": None, "joules_per_token_interval": None}
        told = self.energy.to_dict(self._time_interval(self.energy))
        bounds = [told[name] / self.tokens_given for name in ("low_j", "high_j")]
        return {"energy": told, "joules_per_token": self.joules_per_token, "joules_per_token_interval": bounds}

    def energy_lines(self) -> list[str]:
        """In a line; none where nothing is known."""
        if self.energy is None:
            return []
        told = self.energy_document()
        each, low, high = (
            format_quantity(j, "J") for j in (told["joules_per_token"], *told["joules_per_token_interval"])
        )
        one = f", {format_quantity(self.energy.mean_w_per_gpu, 'W')} a GPU" if self.energy.gpus > 1 else ""
        mean = format_quantity(self.energy.mean_w, "W")
        idle = self.energy.parts_j["idle"] / self.energy.joules
        return [f"energy: {each} a token (90 %: {low} to {high}), {mean} on average{one}, {idle:.0%} of it idling"]

    def _time_interval(self, energy: TeamEnergy) -> tuple[float, float]:
        low, high = (energy.total_s * bound / self.decode.total_s for bound in self.decode.interval())
        return low, high
