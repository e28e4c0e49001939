"""Memory of fine-tuning by the methods of PEFT, against what its comparison of methods logged on an L40S.

    pip install peft
    python -m benchmarks.memory.peft DATA [--most 12] [--steps 60]

DATA/peft/runs.csv: Llama 3.2 3B in bfloat16, its adapters in fp32 under autocast, four texts a step, padded to the
longest. Logged after each step were `torch.cuda.memory_allocated` and `memory_reserved`: their means over 5,000 steps,
and the most that was reserved, are given. No lengths of texts are. Assumed are logarithms that are normally
distributed, of the mean that the tokens of all steps have (4,198,051 in 20,000 texts), 768 at most, sorted by length
within 20 batches, which are then taken in any order; the cache is emptied every ten steps. Their spread, 0.45, is by
the reserved memory of LoRA of rank 32, whose other rows are left out. What a method of PEFT is set to beside its rank
and layers is the library's default, and a run that trained another number of parameters is left out. What differs in
nothing but how its weights begin may still be another method: "bat" of MiSS, and PSOFT that keeps its decompositions.
"""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

import rooflinekit as rk
from benchmarks.sources.command import asked
from benchmarks.sources.tables import read_table
from rooflinekit.errors import RooflinekitError
from rooflinekit.published.models import published

_MEAN, _MOST, _SPREAD = 4_198_051 / 20_000, 768, 0.45
_BATCH, _BUCKET, _EMPTIED = 4, 20, 10
_STATED = "lora/llama-3.2-3B-rank32"


def lengths(steps: int) -> list[int]:
    """Tokens of the longest text of each step; one of them is as long as texts may be."""
    random, found = np.random.default_rng(0), []
    while len(found) < steps:
        texts = random.lognormal(np.log(_MEAN) - _SPREAD**2 / 2, _SPREAD, _BATCH * _BUCKET)
        longest = np.sort(np.minimum(texts, _MOST).astype(int))[_BATCH - 1 :: _BATCH]
        found += [int(value) for value in random.permutation(longest)]
    found = found[:steps]
    found[found.index(max(found))] = _MOST
    return found


def traced(row: Any) -> rk.Graph:
    """A step of this method, its length open."""
    from rooflinekit.tracing.targets import declare_torchvision_operators

    declare_torchvision_operators()
    import peft
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(**dict(published("llama-3.2-3b")[1]))
    with torch.device("meta"):
        model = LlamaForCausalLM(config).to(torch.bfloat16)
        if isinstance(row.peft_type, str):
            made = peft.PEFT_TYPE_TO_CONFIG_MAPPING[peft.PeftType[row.peft_type]]
            given = {"target_modules": row.target_modules.split(",") if isinstance(row.target_modules, str) else None}
            given |= {"r": int(row.r)} if row.r > 0 else {}
            given |= {"use_dora": True} if row.use_dora == "True" else {}
            known = {name: value for name, value in given.items() if name in made.__dataclass_fields__}
            model = peft.get_peft_model(model, made(task_type="CAUSAL_LM", **known))
            for weight in model.parameters():
                weight.data = weight.data.float() if weight.requires_grad else weight.data
    trained = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
    if abs(trained / row.trainable_params - 1) > 0.01:
        raise ValueError(f"{trained} parameters are trained, not {row.trainable_params:.0f}")
    ids = rk.Input(_BATCH, "seq", dtype="int64")
    return rk.trace(
        model, input_ids=ids, attention_mask=ids, labels=ids, mode="training", optimizer=row.optimizer,
        autocast="bfloat16", sizes={"seq": 256}, name=row.experiment,
    )  # fmt: skip


def chosen(data: Path) -> pd.DataFrame:
    """The newest run of each method, and what it had allocated, in the order of a hash of its name."""
    folder = data / "peft"
    runs = read_table(folder / "runs.csv")
    means = read_table(folder / "intervals.parquet").groupby(["path", "created"], as_index=False)
    runs = runs.merge(means["mem_allocated_avg"].mean(), on=["path", "created"])
    runs = runs[runs.task.eq("MetaMathQA") & runs.max_sequence.eq(_MOST) & runs.optimizer.eq("AdamW")]
    runs = runs[~runs.gradient_checkpointing.astype(str).eq("True") & runs.experiment.ne(_STATED)]
    runs = runs.sort_values("created").groupby("experiment", as_index=False).last()
    runs = runs.drop_duplicates(["peft_type", "memory_max"])  # another rate of learning
    return runs.sort_values("experiment", key=lambda names: names.map(lambda name: zlib.crc32(name.encode())))


def judged(data: Path, most: int, steps: int = 60) -> pd.DataFrame:
    """One line a method, GB."""
    rows: list[dict[str, Any]] = []
    values = lengths(steps)
    for row in chosen(data).itertuples():
        if most and len({one["method"] for one in rows}) >= most:
            break
        try:
            graph = traced(row)
        except (
            RooflinekitError,
            ValueError,
            TypeError,
            KeyError,
            RuntimeError,
            NotImplementedError,
            ImportError,
        ) as error:
            print(f"{row.experiment}: left out: {str(error).splitlines()[0][:150]}", flush=True)
            continue
        longest = rk.predict(graph, "nvidia-l40s", seq=_MOST)
        over = longest.memory_over("seq", values, emptied=_EMPTIED)
        reserved = [step.reserved_bytes for step in over]
        told = {
            "after a step": (np.mean([step.allocated_bytes for step in over]), row.mem_allocated_avg),
            "reserved": (np.mean(reserved), row.memory_reserved_avg),
            "reserved, most": (max(reserved), row.memory_max),
        }
        rows += [
            {"method": row.experiment, "kind": kind, "told": mine / 1e9, "measured": theirs / 1e9}
            | {"fits": longest.memory.fits}
            for kind, (mine, theirs) in told.items()
        ]  # fmt: skip
    found = pd.DataFrame(rows, columns=["method", "kind", "told", "measured", "fits"])
    return found.assign(ratio=found.told / found.measured)


def main() -> None:
    """Prints the table, a line a method."""
    options = asked(
        __doc__, most={"type": int, "default": 12, "help": "methods that are followed; 0: all"},
        steps={"type": int, "default": 60, "help": "that are followed of each"},
    )  # fmt: skip
    found = judged(options.data, options.most, options.steps)
    print(found.pivot(index="method", columns="kind", values="ratio").round(3).to_string())
    print((found.assign(off=100 * (found.ratio - 1).abs()).groupby("kind")["off"].describe()).round(1).to_string())


if __name__ == "__main__":
    main()
