"""Single steps: networks × ways to trace them × devices, executions, hosts and limits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, TypeVar
from zlib import crc32

import torch

import rooflinekit as rk

from .networks import NETWORKS

T = TypeVar("T")

_ADAM = {"mode": "training", "optimizer": torch.optim.AdamW}
_SGD = {"mode": "training", "optimizer": partial(torch.optim.SGD, momentum=0.9)}

#: Ways to trace: options of `rk.trace` by a name.
TRACED: Mapping[str, Mapping[str, Any]] = {
    "inference": {},
    "inference fp16": {"dtype": "float16"},
    "inference bf16": {"dtype": "bfloat16"},
    "inference tf32": {"tf32": True},
    "inference without tf32": {"tf32": False},
    "inference channels last": {"channels_last": True},
    "inference channels last fp16": {"channels_last": True, "dtype": "float16"},
    "inference autocast fp16": {"autocast": "float16"},
    "inference as 1.13": {"like": "1.13", "inference_mode": True},
    "forward": {"mode": "forward"},
    "training": _ADAM,
    "training sgd": _SGD,
    "training tf32": {**_ADAM, "tf32": True},
    "training bf16": {**_SGD, "dtype": "bfloat16"},
    "training autocast fp16": {**_ADAM, "autocast": "float16"},
    "training autocast bf16": {**_SGD, "autocast": "bfloat16"},
    "training channels last": {**_SGD, "channels_last": True},
    "training channels last autocast": {**_ADAM, "channels_last": True, "autocast": "float16"},
    "training as 1.11": {**_ADAM, "like": "1.11"},
    "training as 2.4": {**_SGD, "like": "2.4", "autocast": "bfloat16"},
}

#: In which of them each network is traced.
OF_NETWORKS: Mapping[str, Sequence[str]] = {
    "windows": ("inference", "inference channels last fp16", "training", "training channels last autocast"),
    "depthwise": (
        "inference", "inference channels last", "inference channels last fp16", "training", "training autocast fp16",
    ),
    "grouped": ("inference fp16", "training channels last", "training as 1.11"),
    "volume": ("inference", "inference bf16", "training autocast fp16"),
    "skipping": ("inference", "inference channels last fp16", "training autocast bf16"),
    "signal": ("inference tf32", "inference fp16", "training"),
    "perceptron": ("inference", "inference bf16", "training tf32", "training as 2.4"),
    "encoder": ("inference fp16", "inference as 1.13", "training autocast fp16"),
    "attending": ("inference bf16", "training", "training as 1.11"),
    "decoding": ("inference",),
    "windowed": ("inference bf16",),
    "eight bits": ("inference",),
    "eight-bit rows": ("inference",),
    "four bits": ("inference",),
    "integers": ("inference",),
    "batched": ("inference", "inference fp16", "inference without tf32"),
    "mixture": ("inference autocast fp16", "training"),
    "lstm": ("inference", "inference fp16", "training"),
    "gru": ("inference", "training autocast fp16"),
    "rnn": ("inference", "training sgd"),
    "stepped": ("inference", "training"),
    "pointwise": ("inference", "inference fp16", "training"),
    "shuffled": ("inference", "training bf16"),
    "transformed": ("inference",),
    "resampled": ("inference", "inference fp16"),
    "resnet50": ("inference", "training channels last autocast"),
    "mobilenetv3": ("inference channels last fp16", "forward"),
    "convnext": ("inference fp16",),
    "vit": ("training autocast bf16",),
    "gpt2": ("training autocast fp16",),
    "llama": ("inference bf16",),
    "mixtral": ("inference bf16",),
}  # fmt: skip

#: What takes long to trace is looked at with --slow alone.
SLOW = {
    ("attending", "training as 1.11"), ("encoder", "training autocast fp16"), ("vit", "training autocast bf16"),
    ("resnet50", "training channels last autocast"), ("gpt2", "training autocast fp16"),
}  # fmt: skip

#: What sweeps and steps on several devices are made of.
OPEN = {
    ("windows", "inference"), ("depthwise", "training autocast fp16"), ("encoder", "inference fp16"),
    ("encoder", "training autocast fp16"), ("perceptron", "inference bf16"), ("perceptron", "training tf32"),
    ("lstm", "training"), ("attending", "inference bf16"), ("decoding", "inference"), ("vit", "training autocast bf16"),
    ("gpt2", "training autocast fp16"),
}  # fmt: skip

DEVICES = (
    "nvidia-k80", "nvidia-gtx-titan-x-maxwell", "nvidia-p100-pcie-16gb", "nvidia-gtx-1080-ti", "nvidia-v100-sxm2-16gb",
    "nvidia-t4", "nvidia-a100-sxm4-80gb", "nvidia-rtx-3090", "nvidia-l4", "nvidia-h100-sxm5-80gb",
    "nvidia-b200-sxm-180gb", "nvidia-rtx-5090", "amd-mi60", "amd-mi100", "amd-mi250x-gcd", "amd-mi300x",
    "amd-rx-6800-xt", "amd-rx-7900-xtx", "intel-max-1550", "apple-m2-max-38c", "intel-xeon-platinum-8480plus",
    "generic-cloud-cpu-avx2",
)  # fmt: skip
_NEWEST = (
    "nvidia-l4", "nvidia-h100-sxm5-80gb", "nvidia-b200-sxm-180gb", "nvidia-rtx-5090", "amd-mi300x", "amd-mi355x",
)  # fmt: skip
#: Networks of formats that few devices multiply.
DEVICES_OF = dict.fromkeys(("eight bits", "eight-bit rows", "four bits"), _NEWEST)

EXECUTIONS = (
    rk.Execution(),
    rk.Execution(sync="none"),
    rk.Execution(sync="op"),
    rk.Execution(sync="events"),
    rk.Execution(copy="pageable"),
    rk.Execution(copy="pinned", non_blocking=True, sync="none"),
    rk.Execution(loader_rate=5000.0),
    rk.Execution(backend="compiled"),
    rk.Execution(backend="compiled", sync="none"),
    rk.Execution(backend="compiled", sync="events", copy="pinned"),
    rk.Execution(backend="cuda-graph"),
    rk.Execution(backend="cuda-graph", sync="events"),
    rk.Execution(backend="reduce-overhead"),
    rk.Execution(backend="max-autotune"),
    rk.Execution(backend="max-autotune-no-cudagraphs"),
    rk.Execution(backend="cudagraphs"),
    rk.Execution(backend="aot-eager"),
)
HOSTS = ("generic-server", "generic-cloud", "generic-desktop", "desktop-2020", "xeon-server-2018")
#: Of the board's own limit of power or clock, or a burst; most predictions have none.
LIMITS: Sequence[Mapping[str, Any]] = ({}, {}, {}, {}, {"burst": True}, {"sm_clock": 0.7}, {"power_limit": 0.6})
PICKS = 3  # predictions of each traced network


@dataclass(frozen=True, kw_only=True)
class Step:
    """One prediction."""

    network: str
    traced: str
    device: str
    execution: rk.Execution
    host: str
    limits: Mapping[str, Any]

    @property
    def name(self) -> str:
        """As it stands in the golden file."""
        limits = "".join(f", {name} {value}" for name, value in self.limits.items())
        return f"{self.network}, {self.traced} on {self.device}{limits}, {self.execution}, {self.host}"


def steps() -> Iterator[Step]:
    """All of them. What is picked follows from names alone: a new network moves no prediction of another."""
    for network, ways in OF_NETWORKS.items():
        for traced in ways:
            for number in range(PICKS):

                def pick(what: str, choices: Sequence[T], key: str = f"{network} {traced} {number}") -> T:
                    return choices[crc32(f"{what} {key}".encode()) % len(choices)]

                device = rk.load_device(pick("device", DEVICES_OF.get(network, DEVICES)))
                executions = [e for e in EXECUTIONS if _exists(e, device, traced)]
                yield Step(
                    network=network,
                    traced=traced,
                    device=device.name,
                    execution=pick("execution", executions),
                    host=pick("host", HOSTS),
                    limits=_of_board(pick("limits", LIMITS), device),
                )


def _exists(execution: rk.Execution, device: rk.Device, traced: str) -> bool:
    """Whether the device and the release of PyTorch have it: CPUs have no CUDA graphs, releases 1.x no compiler."""
    return not (
        (device.kind == "cpu" and execution.as_graph) or (" as 1." in traced and (execution.entered or execution.fused))
    )


def _of_board(limits: Mapping[str, Any], device: rk.Device) -> Mapping[str, Any]:
    """Limits in W and Hz; none where the device's power is not stated."""
    if device.kind == "cpu" or device.board_power is None or device.process_nm is None:
        return {}
    own = {"power_limit": device.board_power / device.devices_per_board, "sm_clock": device.clock.boost}
    return {name: round(value * own[name]) if name in own else value for name, value in limits.items()}


@cache
def graph_of(network: str, traced: str) -> rk.Graph:
    """The network, traced in this way, with open sizes."""
    return _traced(network, traced)


@cache
def sized(network: str, traced: str) -> rk.Graph:
    """The same at its sizes: traced as numbers, which is faster, but where the open sizes are needed too."""
    sizes = NETWORKS[network].sizes
    return graph_of(network, traced).at(**sizes) if (network, traced) in OPEN else _traced(network, traced, sizes)


def _traced(network: str, traced: str, sizes: Mapping[str, int] | None = None) -> rk.Graph:
    one = NETWORKS[network]
    with torch.device("meta"):
        model = one.build()
    fixed = {} if sizes is None else {"sizes": sizes, "fixed": True}
    return rk.trace(model, *one.inputs, name=network, **{**one.options, **TRACED[traced]}, **fixed)


def predicted(step: Step) -> rk.Prediction:
    """Raises what `rk.predict` raises."""
    return rk.predict(
        sized(step.network, step.traced), step.device, host=step.host, execution=step.execution, **step.limits
    )


def recorded(p: rk.Prediction) -> dict[str, Any]:
    """What the golden file holds of a prediction."""
    told = p.to_dict()
    kinds = p.by_kind().sort_index()
    return {
        "seconds": {name: told[name] for name in ("total_s", "low_s", "high_s", "gpu_s", "cpu_s")},
        "counts": {name: told[name] for name in ("flop", "bytes", "kernels")},
        "terms": told["terms"],
        "underuse": told["underuse"],
        "shares": {**told["shares"], "mfu": told["mfu"], "hfu": told["hfu"]},
        "memory": told["memory"],
        "energy": told["energy"],
        "kinds": dict(zip(map(str, kinds.index), kinds["total_s"], strict=True)),
    }
