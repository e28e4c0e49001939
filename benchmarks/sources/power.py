"""Steps whose power was measured: what to trace for each row, and how many watts and seconds it took.

Sources: zeus (training on V100 and A40 at every power limit; Apache-2.0), splitwise (decoding and prompts of large
models on 2 to 8 A100; MIT), llm_inference_bench (whole answers on an A100; BSD-3), ml_energy (decoding on H100; no
licence, so for judging alone).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import rooflinekit as rk
from benchmarks.sources.tables import read_table
from rooflinekit.decoder.decoder import Decoder
from rooflinekit.decoder.formats import Options
from rooflinekit.decoder.inference import step_graph

#: Samples of an epoch: images, windows of 384 tokens, pairs with four negative ones each, utterances of 960 hours.
SAMPLES = {
    "cifar100": 50_000, "imagenet": 1_281_167, "squad": 88_524, "movielens-1m": 4_970_845, "librispeech": 281_241,
}  # fmt: skip
#: What trains BERT in fp32 at 12 TFLOP/s with 250 W, of the 14.1 that a V100 PCIe has at most, is taken for a V100S.
_GPUS = {"v100": str(Path(__file__).parent / "nvidia-v100s-pcie-32gb.yaml"), "a40": "nvidia-a40"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A step of a graph, so many times."""

    graph: Callable[[], rk.Graph]
    sizes: dict[str, int]
    times: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A measured row: what ran, and the mean watts of one GPU."""

    source: str
    gpu: str
    network: str  # the family by which rows are fitted or judged
    label: str
    phases: tuple[Phase, ...]
    watts: float
    seconds: float  # of the phases; 0 where no row tells
    limit_w: float = 0.0  # 0 for the board's own
    tp: int = 1
    execution: str = "eager"


def cases(data: Path) -> Iterator[Case]:
    """All of them."""
    yield from _zeus(data / "zeus" / "power_limit_epochs.csv")
    yield from _splitwise(data / "splitwise" / "perf_model.csv")
    yield from _inference_bench(data / "llm_inference_bench" / "all.parquet")
    yield from _ml_energy(data / "ml_energy" / "leaderboard_v3.csv")


def _zeus(file: Path) -> Iterator[Case]:
    table = read_table(file)
    table = table[table["dataset"] != "sentiment140"]  # how long its sentences are, no file says
    full = {gpu: part["power_limit"].max() for gpu, part in table.groupby("gpu")}
    for row in table.itertuples():
        samples = SAMPLES.get(row.dataset, 0)
        yield Case(
            source="zeus",
            gpu=_GPUS[row.gpu],
            network=row.network,
            label=f"{row.network} {row.optimizer} {row.batch_size}",
            phases=(Phase(graph=lambda r=row: training(r.network, r.optimizer), sizes={"batch": row.batch_size}),),
            watts=row.average_power,
            seconds=row.time_per_epoch * row.batch_size / samples if samples else 0.0,
            limit_w=0.0 if row.power_limit == full[row.gpu] else float(row.power_limit),
        )


_DECODERS: dict[str, dict[str, Any]] = {
    "llama-2-7b": {"layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 32, "ffn": 11008, "vocab": 32000},
    "mistral-7b": {"layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "ffn": 14336, "vocab": 32000},
    "llama-3-8b": {"layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "ffn": 14336, "vocab": 128256},
    "llama-2-70b": {"layers": 80, "hidden": 8192, "heads": 64, "kv_heads": 8, "ffn": 28672, "vocab": 32000},
    "llama-3.1-70b": {"layers": 80, "hidden": 8192, "heads": 64, "kv_heads": 8, "ffn": 28672, "vocab": 128256},
    "bloom-176b": {"layers": 70, "hidden": 14336, "heads": 112, "kv_heads": 112, "ffn": 57344, "vocab": 250880,
                   "gated": False, "tied": True},
    "qwen3-8b": {"layers": 36, "hidden": 4096, "heads": 32, "kv_heads": 8, "ffn": 12288, "vocab": 151936},
    "qwen3-14b": {"layers": 40, "hidden": 5120, "heads": 40, "kv_heads": 8, "ffn": 17408, "vocab": 151936},
    "qwen3-32b": {"layers": 64, "hidden": 5120, "heads": 64, "kv_heads": 8, "ffn": 25600, "vocab": 151936},
}  # fmt: skip


def decoder(name: str) -> Decoder:
    """The published numbers of a model; heads of 128."""
    return Decoder(name=name, head_dim=128, qk_norm=name.startswith("qwen3"), **_DECODERS[name])


@cache
def _decoding(name: str, tp: int, step: str) -> rk.Graph:
    return step_graph(decoder(name), step, Options(tp=tp))


def _phase(name: str, tp: int, step: str, times: float = 1.0, **sizes: int) -> Phase:
    return Phase(graph=lambda: _decoding(name, tp, step), sizes=sizes, times=times)


def _splitwise(file: Path) -> Iterator[Case]:
    """Mean power is that of the answer's tokens, a share of the board's 400 W; rows without it say 0."""
    table = read_table(file)
    table = table[(table["average_power"] > 0) & (table["prompt_size"] < 4096)]  # above, the mean holds the prompt
    by = ["model", "tensor_parallel", "prompt_size", "batch_size", "token_size"]
    for (model, tp, prompt, batch, tokens), part in table.groupby(by):
        name = {"llama2-70b": "llama-2-70b"}.get(model, model)
        middle = part.median(numeric_only=True)
        yield Case(
            source="splitwise",
            gpu="nvidia-a100-sxm4-80gb",
            network=name,
            label=f"{name} tp{tp} prompt {prompt} batch {batch}",
            phases=(_phase(name, tp, "decode", batch=batch, context=prompt + tokens // 2),),
            watts=400 * middle["average_power"],
            seconds=1e-3 * middle["token_time"],
            tp=tp,
            execution="cuda-graph",
        )


_BENCHED = {
    "meta-llama/Llama-2-7b-hf": "llama-2-7b",
    "meta-llama/Meta-Llama-3-8B": "llama-3-8b",
    "mistralai/Mistral-7B-v0.1": "mistral-7b",
    "mistralai/Mistral-7B-v0.3": "mistral-7b",
}


def _inference_bench(file: Path) -> Iterator[Case]:
    """Rows in milliwatts; those of another figure lie above the board's limit, so nobody knows what they are."""
    table = read_table(file)
    table = table[(table["avg_power"] > 1e4) & table["model"].isin(_BENCHED) & table["gpu"].str.contains("A100")]
    for row in table.itertuples():
        name, batch, length = _BENCHED[row.model], int(row.batch), int(row.input_output)
        if int(row.gpus) != 1 or row.framework not in ("vLLM", "TensorRT-LLM"):
            continue
        answer = _phase(name, 1, "decode", times=length, batch=batch, context=length + length // 2)
        yield Case(
            source="llm_inference_bench",
            gpu="nvidia-a100-sxm4-40gb",
            network=name,
            label=f"{name} {row.framework} batch {batch}",
            phases=(_phase(name, 1, "prefill", times=batch, batch=1, seq=length), answer),
            watts=1e-3 * row.avg_power,
            seconds=row.latency_s,
            execution="cuda-graph",
        )


_LEADERS = {
    "Qwen/Qwen3-8B": "qwen3-8b",
    "Qwen/Qwen3-14B": "qwen3-14b",
    "Qwen/Qwen3-32B": "qwen3-32b",
    "meta-llama/Llama-3.1-8B-Instruct": "llama-3-8b",
    "meta-llama/Llama-3.1-70B-Instruct": "llama-3.1-70b",
    "meta-llama/Llama-3.3-70B-Instruct": "llama-3.1-70b",
}
_PROMPT = 200  # tokens of a question, about


def _ml_energy(file: Path) -> Iterator[Case]:
    """Dense decoders in bf16; the batch is what ran on average, and a step takes batch / tokens a second."""
    table = read_table(file)
    table = table[table["model_id"].isin(_LEADERS) & (table["weight_precision"] == "bfloat16")]
    for row in table.itertuples():
        name, tp, batch = _LEADERS[row.model_id], int(row.tensor_parallel), max(1, round(row.avg_batch_size))
        if row.num_gpus != tp:
            continue
        context = int(_PROMPT + row.avg_output_len / 2)
        yield Case(
            source="ml_energy",
            gpu="nvidia-h100-sxm5-80gb",
            network=name,
            label=f"{name} {row.task} tp{tp} batch {batch}",
            phases=(_phase(name, tp, "decode", batch=batch, context=context),),
            watts=row.avg_power_watts / row.num_gpus,
            seconds=row.avg_batch_size / row.output_throughput_tokens_per_sec,
            tp=tp,
            execution="cuda-graph",
        )


# --- the networks of zeus ------------------------------------------------------------------------------------------


@cache
def training(network: str, optimizer: str) -> rk.Graph:
    """One step of training as zeus' scripts run it, in fp32, with PyTorch 1.10 (TF32 where the GPU has it).

    Deep Speech 2 trains in mixed precision: an epoch takes the V100 hardly longer than the A40.
    """
    import torch

    from rooflinekit.tracing.targets import declare_torchvision_operators

    declare_torchvision_operators()
    kinds = {"adadelta": torch.optim.Adadelta, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    model, inputs, further = _MODELS[network]()
    return rk.trace(
        model, *inputs, mode="training", optimizer=lambda p: kinds[optimizer](p, foreach=False), like="1.10",
        name=network, **further,
    )  # fmt: skip


def _resnet50() -> Any:
    import torch
    import torchvision

    loss = {"loss": torch.nn.functional.cross_entropy, "targets": [rk.Input("batch", dtype="int64")]}
    return torchvision.models.resnet50(), [rk.Input("batch", 3, 224, 224)], loss


def _shufflenet() -> Any:
    """ShuffleNet V2 1x of 32×32 images: torchvision's, with a first layer that keeps the size, and no pooling."""
    import torch
    import torchvision

    model = torchvision.models.shufflenet_v2_x1_0(num_classes=100)
    model.conv1[0] = torch.nn.Conv2d(3, 24, 3, padding=1, bias=False)
    model.maxpool = torch.nn.Identity()
    loss = {"loss": torch.nn.functional.cross_entropy, "targets": [rk.Input("batch", dtype="int64")]}
    return model, [rk.Input("batch", 3, 32, 32)], loss


def _bert() -> Any:
    from transformers import BertConfig, BertForQuestionAnswering

    model = BertForQuestionAnswering(BertConfig(attn_implementation="eager"))
    words = {name: rk.Input("batch", 384, dtype="int64") for name in ("input_ids", "attention_mask", "token_type_ids")}
    ends = {name: rk.Input("batch", dtype="int64") for name in ("start_positions", "end_positions")}
    return model, [], {**words, **ends, "keywords": None}


def _ncf() -> Any:
    """NeuMF of MovieLens 1M: 6,040 users, 3,706 films, factors of 32, three layers (guoyang9/NCF)."""
    import torch
    from torch import nn

    class NeuMF(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.users, self.films = nn.Embedding(6040, 32), nn.Embedding(3706, 32)
            self.deep_users, self.deep_films = nn.Embedding(6040, 128), nn.Embedding(3706, 128)
            widths = (256, 128, 64, 32)
            layers = [nn.Sequential(nn.Linear(a, b), nn.ReLU()) for a, b in pairwise(widths)]
            self.layers, self.predict = nn.Sequential(*layers), nn.Linear(64, 1)

        def forward(self, user: Any, film: Any) -> Any:
            deep = self.layers(torch.cat((self.deep_users(user), self.deep_films(film)), -1))
            return self.predict(torch.cat((self.users(user) * self.films(film), deep), -1)).view(-1)

    ids = [rk.Input("batch", dtype="int64") for _ in range(2)]
    loss = nn.functional.binary_cross_entropy_with_logits
    return NeuMF(), ids, {"loss": loss, "targets": [rk.Input("batch")]}


def _deepspeech() -> Any:
    """Deep Speech 2 of SeanNaren/deepspeech.pytorch: 12.3 s of sound (librispeech's mean) are 1,230 frames."""
    from torch import nn

    class DeepSpeech(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.front = nn.Sequential(
                nn.Conv2d(1, 32, (41, 11), stride=(2, 2), padding=(20, 5)), nn.BatchNorm2d(32), nn.Hardtanh(0, 20),
                nn.Conv2d(32, 32, (21, 11), stride=(2, 1), padding=(10, 5)), nn.BatchNorm2d(32), nn.Hardtanh(0, 20),
            )  # fmt: skip
            sizes = (1312, *([1024] * 4))
            self.norms = nn.ModuleList(nn.BatchNorm1d(n) for n in sizes)
            self.layers = nn.ModuleList(nn.LSTM(n, 1024, bidirectional=True, bias=True) for n in sizes)
            self.out = nn.Linear(1024, 29, bias=False)

        def forward(self, sound: Any) -> Any:
            x = self.front(sound)
            x = x.flatten(1, 2).permute(2, 0, 1)  # [time, batch, features]
            for i, (norm, layer) in enumerate(zip(self.norms, self.layers, strict=True)):
                if i:
                    x = norm(x.flatten(0, 1)).view(x.shape)
                x, _ = layer(x)
                x = x.view(x.shape[0], x.shape[1], 2, -1).sum(2)
            return self.out(x).log_softmax(-1)

    return DeepSpeech(), [rk.Input("batch", 1, 161, 1230)], {"loss": lambda out: out.sum(), "autocast": "float16"}


_MODELS: dict[str, Callable[[], Any]] = {
    "resnet50": _resnet50,
    "shufflenetv2": _shufflenet,
    "bert_base_uncased": _bert,
    "ncf": _ncf,
    "deepspeech2": _deepspeech,
}
