"""How much of real networks is traced, and counted by exact rules.

    python -m benchmarks.coverage.coverage [--only timm|transformers] [--match WORD] [--jobs 2]

One or two models of every timm family, and transformers architectures in their default configurations, inference and
training, with open sizes. Prints a line for each that is not fully covered, and a summary.
"""

from __future__ import annotations

import argparse
import collections
import sys
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field


@dataclass
class Row:
    """What came of one model in one mode."""

    target: str
    mode: str
    seconds: float = 0.0
    error: str = ""
    sizes: str = ""  # what was forced, or traced at numbers
    flop_share: float = 0.0
    bytes_share: float = 0.0
    default_kinds: dict[str, int] = field(default_factory=dict)


def timm_targets() -> list[str]:
    """The smallest and the first name of each timm module."""
    from rooflinekit.tracing.targets import declare_torchvision_operators

    declare_torchvision_operators()
    import timm

    found = []
    for module in timm.list_modules():
        names = [n for n in timm.list_models(module=module) if "_giant" not in n and "_7b" not in n]
        found += [f"timm:{n}" for n in dict.fromkeys(names[:1] + sorted(names, key=len)[:1])]
    return found


# architecture: inputs as the command line writes them
TRANSFORMERS = {
    "BertForSequenceClassification": "batch,seq:int64",
    "RobertaForMaskedLM": "batch,seq:int64",
    "DistilBertForMaskedLM": "batch,seq:int64",
    "AlbertForMaskedLM": "batch,seq:int64",
    "ElectraForPreTraining": "batch,seq:int64",
    "DebertaV2ForMaskedLM": "batch,seq:int64",
    "GPT2LMHeadModel": "batch,seq:int64",
    "GPTNeoXForCausalLM": "batch,seq:int64",
    "OPTForCausalLM": "batch,seq:int64",
    "BloomForCausalLM": "batch,seq:int64",
    "FalconForCausalLM": "batch,seq:int64",
    "LlamaForCausalLM": "batch,seq:int64",
    "MistralForCausalLM": "batch,seq:int64",
    "Qwen2ForCausalLM": "batch,seq:int64",
    "Gemma2ForCausalLM": "batch,seq:int64",
    "Phi3ForCausalLM": "batch,seq:int64",
    "MixtralForCausalLM": "batch,seq:int64",
    "MambaForCausalLM": "batch,seq:int64",
    "T5ForConditionalGeneration": "input_ids=batch,seq:int64 decoder_input_ids=batch,out:int64",
    "BartForConditionalGeneration": "batch,seq:int64",
    "WhisperForConditionalGeneration": "input_features=batch,80,3000 decoder_input_ids=batch,out:int64",
    "ViTForImageClassification": "batch,3,224,224",
    "SwinForImageClassification": "batch,3,224,224",
    "DetrForObjectDetection": "batch,3,224,224",
    "CLIPModel": "input_ids=texts,seq:int64 pixel_values=batch,3,224,224",
    "SegformerForSemanticSegmentation": "batch,3,512,512",
    "Wav2Vec2ForCTC": "batch,16000",
    "WavLMModel": "batch,16000",
    "DINOv3ViTModel": "batch,3,h,w",
    "RTDetrV2ForObjectDetection": "batch,3,256,256",
    "Dinov2Model": "batch,3,224,224",
    "SiglipVisionModel": "batch,3,224,224",
    "ModernBertForMaskedLM": "batch,seq:int64",
    "CohereForCausalLM": "batch,seq:int64",
    "Olmo2ForCausalLM": "batch,seq:int64",
    "GraniteForCausalLM": "batch,seq:int64",
}


# Experts are multiplied by a kernel that takes bf16 alone.
DTYPES = {"transformers:MixtralForCausalLM": "bfloat16"}


def inputs_of(target: str) -> tuple[list[str], tuple[int, int, int]]:
    """Descriptions of the inputs, and the image size (channels, height, width)."""
    source, _, name = target.partition(":")
    if source == "transformers":
        return TRANSFORMERS[name].split(), (0, 0, 0)
    import timm

    config = timm.get_pretrained_cfg(name)
    size = tuple(config.input_size) if config is not None else (3, 224, 224)
    return [f"batch,{','.join(map(str, size))}"], size


def trace_one(job: tuple[str, str]) -> Row:
    """One model in one mode, in a worker."""
    warnings.simplefilter("ignore")
    import torch

    import rooflinekit as rk
    from rooflinekit.errors import RooflinekitError
    from rooflinekit.tracing.targets import load_target

    torch.set_num_threads(1)
    target, mode = job
    row = Row(target=target, mode=mode)
    start = time.perf_counter()
    try:
        model = load_target(target).model
        described, _ = inputs_of(target)
        args = [rk.Input.parse(text) for text in described if "=" not in text]
        kwargs = {n: rk.Input.parse(v) for n, _, v in (text.partition("=") for text in described if "=" in text)}
        optimizer = torch.optim.SGD if mode == "training" else None
        graph = rk.trace(model, *args, mode=mode, optimizer=optimizer, dtype=DTYPES.get(target), **kwargs)
        row.sizes = "; ".join(map(str, graph.forced))
        coverage = graph.coverage
        row.flop_share, row.bytes_share = coverage.flop_share, coverage.bytes_share
        row.default_kinds = dict(coverage.default_kinds)
    except RooflinekitError as error:
        row.error = f"{type(error).__name__}: {error}".splitlines()[0]
    except Exception as error:
        row.error = f"CRASH {type(error).__name__}: {error}".splitlines()[0]
    row.seconds = time.perf_counter() - start
    return row


def report(rows: list[Row]) -> None:
    """What is not covered, then the totals by source."""
    kinds: collections.Counter[str] = collections.Counter()
    for row in sorted(rows, key=lambda row: (row.target, row.mode)):
        kinds.update(row.default_kinds)
        if row.error or row.sizes or row.flop_share < 0.999 or row.bytes_share < 0.99:
            shares = f"FLOP {row.flop_share:.3%}, bytes {row.bytes_share:.3%}"
            text = row.error or f"{shares} {row.sizes} {row.default_kinds}"
            print(f"{row.target} {row.mode}: {text[:400]}")
    print("\nops without a rule:", ", ".join(f"{kind} ×{count}" for kind, count in kinds.most_common()) or "none")
    for source in ("timm", "transformers"):
        mine = [row for row in rows if row.target.startswith(source)]
        if mine:
            traced = [row for row in mine if not row.error]
            exact = [row for row in traced if row.flop_share >= 0.999 and row.bytes_share >= 0.99]
            print(
                f"{source}: {len(mine)} traces, {len(traced)} succeed ({len(traced) / len(mine):.1%}), "
                f"{len(exact)} of them with 99.9 % of FLOP and 99 % of bytes by exact rules; "
                f"slowest {max(row.seconds for row in mine):.1f} s"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=("timm", "transformers"))
    parser.add_argument("--match", default="", help="only targets that contain this")
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    targets = [] if arguments.only == "transformers" else timm_targets()
    if arguments.only != "timm":
        targets += [f"transformers:{name}" for name in TRANSFORMERS]
    jobs = [(t, mode) for t in targets if arguments.match in t for mode in ("inference", "training")]
    rows = []
    with ProcessPoolExecutor(arguments.jobs) as pool:
        for i, row in enumerate(pool.map(trace_one, jobs), 1):
            rows.append(row)
            print(f"\r{i}/{len(jobs)} {row.target} {row.mode} {row.seconds:.1f} s\033[K", end="", file=sys.stderr)
    print(file=sys.stderr)
    report(rows)


if __name__ == "__main__":
    main()
