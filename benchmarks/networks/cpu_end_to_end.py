"""Real models on the CPU at hand beside their predictions, after a calibration of it.

    python -m benchmarks.networks.cpu_end_to_end SPEC.yaml [--plan quick] [--out pairs] [--only resnet18,lstm]

SPEC.yaml describes the CPU (`rooflinekit specs detect --cpu`, or `specs new`). It is calibrated with the plan; then
each model runs in inference and training, with 1 and 8 samples, on one thread and on all, and is predicted from that
fit and the host that the calibration measured. Nothing is fitted on the models. Printed: every pair with its error, the
median error and the rank correlation, and the three ops that are furthest off over all runs. Run it on an idle machine.
"""

from __future__ import annotations

import argparse
import logging
import sys
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import torch
from torch import nn

import rooflinekit as rk
from rooflinekit.api import calibrate as calibration_workflows
from rooflinekit.calibrate.bench import session
from rooflinekit.calibrate.bench.plan import load_plan
from rooflinekit.calibrate.bench.timers import timer_of
from rooflinekit.calibrate.fitting import files as fits
from rooflinekit.files import write_text
from rooflinekit.hardware.device import Device
from rooflinekit.hardware.specs import load_device
from rooflinekit.hardware.yaml_file import spec_text
from rooflinekit.study.profile.matching import Validation
from rooflinekit.tracing.targets import load_target


class Gpt(nn.Module):
    """Four layers of a decoder, 256 wide, over 128 tokens of 8,000 words."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(8000, 256), nn.Embedding(128, 256)
        layer = nn.TransformerEncoderLayer(
            256, 4, 1024, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.head = nn.Linear(256, 8000, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], device=tokens.device)
        x = self.words(tokens) + self.places.weight[: tokens.shape[1]]
        return self.head(self.layers(x, mask=mask, is_causal=True))


class Lstm(nn.Module):
    """Two layers, 256 wide, over 64 steps."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.lstm = nn.Embedding(8000, 256), nn.LSTM(256, 256, 2, batch_first=True)
        self.head = nn.Linear(256, 8000)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(self.words(tokens))[0][:, -1])


def _timm(name: str) -> Callable[[], nn.Module]:
    return lambda: load_target(f"timm:{name}", "cpu").model


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A model and what it is called with, but for the batch."""

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    dtype: str = "float32"


WORKLOADS = {
    "resnet18": Workload(make=_timm("resnet18"), shape=(3, 224, 224)),
    "resnet50": Workload(make=_timm("resnet50"), shape=(3, 224, 224)),
    "mobilenetv3": Workload(make=_timm("mobilenetv3_large_100"), shape=(3, 224, 224)),
    "vit_tiny": Workload(make=_timm("vit_tiny_patch16_224"), shape=(3, 224, 224)),
    "gpt": Workload(make=Gpt, shape=(128,), dtype="int64"),
    "lstm": Workload(make=Lstm, shape=(64,), dtype="int64"),
}


def calibrated(spec: Device, plan: str, folder: Path) -> tuple[Path, Path]:
    """The fit and the host that a calibration finds, as files in the folder; with samples there, what is missing."""
    chosen = load_plan(plan, "cpu", spec.sm_count)
    timer = timer_of("cpu", 0, max(spec.l2_capacity, spec.last_level_cache or 0.0))
    samples = folder / f"{spec.name}-{plan}.jsonl"
    result = calibration_workflows.calibrate(chosen, spec, timer, samples, progress=lambda *_: None)
    if result.fit is None or result.host is None:
        sys.exit(f"plan {plan}: has no cases to fit kernels and the host on")
    session.write_medians(result.campaigns, result.recorded, samples)
    fit, host = folder / f"{spec.name}.fit.yaml", folder / f"{spec.name}-host.yaml"
    fits.write_fit(
        result.fit.calibration, fit, f"Constants of {spec.name}. Made by benchmarks/networks/cpu_end_to_end.py."
    )
    write_text(spec_text(result.host, f"The host of {spec.name}. Made by benchmarks/networks/cpu_end_to_end.py."), host)
    return fit, host


def pairs(spec: Device, fit: Path, host: Path, names: Sequence[str]) -> Iterator[tuple[str, Validation]]:
    """Each model in each way, measured beside its prediction."""
    for name in names:
        workload = WORKLOADS[name]
        model = workload.make()
        for mode in ("inference", "training"):
            for batch in (1, 8):
                for threads in sorted({1, spec.sm_count}):
                    yield name, rk.measure_model(
                        model, rk.Input(batch, *workload.shape, dtype=workload.dtype), device="cpu", gpu=spec,
                        host=str(host), constants=str(fit), threads=threads, mode=mode, name=name, budget_s=6.0,
                        optimizer=torch.optim.SGD if mode == "training" else None, precision=0.02,
                    )  # fmt: skip


def row(name: str, found: Validation) -> dict[str, object]:
    """A line of the table."""
    return {
        "model": name,
        "mode": found.mode,
        "batch": found.inputs[0].split(",")[0],
        "threads": found.threads,
        "measured ms": 1e3 * found.measured_s,
        "predicted ms": 1e3 * found.predicted_s,
        "error %": 100 * found.error,
        "inside": found.inside,
    }


def report(table: pd.DataFrame, missed: dict[str, float]) -> str:
    """The table, and what it comes to."""
    error = table["error %"].abs()
    rank = table["measured ms"].corr(table["predicted ms"], method="spearman")
    worst = sorted(missed.items(), key=lambda item: -abs(item[1]))[:3]
    lines = [
        table.to_string(index=False, float_format=lambda x: f"{x:.3g}"),
        "",
        f"{len(table)} runs: median error {error.median():.1f} %, mean {error.mean():.1f} %, "
        f"rank correlation {rank:.3f}, {100 * table['inside'].mean():.0f} % inside the 90 % interval",
        "ops that are furthest off, measured less predicted over all runs: "
        + ", ".join(f"{kind} {1e3 * seconds:+.0f} ms" for kind, seconds in worst),
    ]
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> None:
    """Calibrates, measures, prints."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("spec", help="a CPU's specification: a file, or a shipped name")
    parser.add_argument("--plan", default="quick")
    parser.add_argument("--out", type=Path, default=Path("cpu-end-to-end"), help="folder for samples, fit and pairs")
    parser.add_argument("--only", help=f"some of {','.join(WORKLOADS)}")
    options = parser.parse_args(arguments)
    names = options.only.split(",") if options.only else list(WORKLOADS)
    if unknown := set(names) - set(WORKLOADS):
        sys.exit(f"--only {min(unknown)}: expected some of {', '.join(WORKLOADS)}")
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    options.out.mkdir(parents=True, exist_ok=True)
    spec = load_device(options.spec)
    fit, host = calibrated(spec, options.plan, options.out)
    rows: list[dict[str, object]] = []
    missed: dict[str, float] = defaultdict(float)
    for name, found in pairs(spec, fit, host, names):
        rows.append(row(name, found))
        found.save(options.out / f"{len(rows):02d}-{name}.json", force=True)
        for kind, differs in found.by_kind()["difference_s"].items():
            missed[str(kind)] += float(differs)
        print(
            " ".join(f"{value:.3g}" if isinstance(value, float) else str(value) for value in rows[-1].values()),
            file=sys.stderr,
            flush=True,
        )
    text = report(pd.DataFrame(rows), missed)
    write_text(text + "\n", options.out / "report.txt")
    print(text)


if __name__ == "__main__":
    main(sys.argv[1:])
