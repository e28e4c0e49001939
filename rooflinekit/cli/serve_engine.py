"""`rooflinekit serve`: the options that say how the engine works, and the combinations that several values ask for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

from rooflinekit.errors import InputError, UnitError
from rooflinekit.units import parse_quantity

if TYPE_CHECKING:
    from rooflinekit.serving.formats import Adapters
    from rooflinekit.serving.settings import Disaggregation, Engine, Speculation


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """As typed; None where the engine's own setting holds."""

    engine: str | None
    host_work: str | None
    policy: str | None
    step_tokens: str | None
    chunks: bool | None
    reserve: str | None
    sequences: int | None
    memory_share: float | None
    graph_sizes: str | None
    sums: str | None
    heads: str | None
    draft: str | None
    draft_tokens: int
    acceptance: float | None
    adapters: int
    adapter_rank: int
    prefill_engines: int
    decode_engines: int
    prefill_tp: int | None
    link: str

    def engines(self) -> list[Engine]:
        """One for each combination of `engine`, `policy` and `step_tokens`."""
        from rooflinekit.serving.settings import Engine

        sizes = None if self.graph_sizes is None else tuple(numbers("--graph-sizes", self.graph_sizes))
        steps = [None] if self.step_tokens is None else numbers("--step-tokens", self.step_tokens)
        given = {
            "host": self.host_work, "chunks": self.chunks, "reserve": self.reserve, "sequences": self.sequences,
            "memory_share": self.memory_share, "graph_sizes": sizes, "sums": self.sums, "heads": self.heads,
            "speculation": self._speculation(), "adapters": self._adapters(),
        }  # fmt: skip
        found = []
        for name, policy, tokens in product(_several(self.engine), _several(self.policy), steps):
            asked = {**given, "policy": policy, "step_tokens": tokens}
            changes: dict[str, Any] = {key: value for key, value in asked.items() if value is not None}
            found.append(Engine(**changes) if name is None else Engine.of(name, **changes))
        return found

    def _speculation(self) -> Speculation | None:
        from rooflinekit.serving.decoder import Decoder
        from rooflinekit.serving.settings import Speculation

        if self.acceptance is None:
            if self.draft is not None:
                raise InputError("--draft: needs --acceptance, the chance that a proposed token is kept, such as 0.7")
            return None
        draft = None if self.draft is None else Decoder.from_config(self.draft)
        return Speculation(tokens=self.draft_tokens, acceptance=self.acceptance, draft=draft)

    def _adapters(self) -> Adapters | None:
        from rooflinekit.serving.formats import Adapters

        return Adapters(number=self.adapters, rank=self.adapter_rank) if self.adapters else None

    def disaggregation(self) -> Disaggregation | None:
        """Engines of their own for prompts, where some are asked for."""
        from rooflinekit.serving.settings import Disaggregation

        if not self.prefill_engines:
            return None
        try:
            speed = parse_quantity(self.link, "byte/s")
        except UnitError:
            raise InputError(f"--link {self.link!r}: expected bytes a second, such as '50 GB/s'") from None
        return Disaggregation(
            prefill=self.prefill_engines, decode=self.decode_engines, prefill_tp=self.prefill_tp, link_bytes_per_s=speed
        )


def places(
    gpus: Iterable[str], clusters: Iterable[str], over: tuple[str, str, str], formats: tuple[str, str],
    engines: Iterable[Engine],
) -> list[dict[str, Any]]:  # fmt: skip
    """Options of `rk.serve` for each combination. over: --tp, --ep, --dp. formats: --weights, --kv."""
    asked = list(product(*(numbers(name, text) for name, text in zip(("--tp", "--ep", "--dp"), over, strict=True))))
    # of several, those that divide the experts evenly; what is asked for alone is refused with its reason
    parts = [(tp, ep, dp) for tp, ep, dp in asked if tp * dp % ep == 0] or asked
    where = [*((name, None) for name in gpus), *((None, name) for name in clusters)]
    return [
        {"gpu": one, "cluster": group, "tp": tp, "ep": ep, "dp": dp, "weights": weights, "kv": kv, "engine": engine}
        for (one, group), (tp, ep, dp), weights, kv, engine in product(
            where, parts, formats[0].split(","), formats[1].split(","), list(engines)
        )
    ]


def _several(text: str | None) -> list[str] | list[None]:
    return [None] if text is None else text.split(",")


def numbers(option: str, text: str) -> list[int]:
    """'1,8,64' → [1, 8, 64]."""
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or min(found) < 1:
        raise InputError(f"{option} {text!r}: expected a positive integer, or several as 1,8,64")
    return found
