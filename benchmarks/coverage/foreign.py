"""How much of other people's and of odd models is traced, and whether it is counted right.

    python -m benchmarks.coverage.foreign [--site FOLDER] [--only WORD] [--limit_s 60] [--verbose]

Networks of public packages in small configurations, and small ones that do what networks do only now and then. Of each:
whether it is traced with fixed sizes, with open ones, as a training step, at a size of 1 as traced there, and whether
its products are those that torch's own counter sees when it is really run (on the CPU, attention unfused); those of
operators that the counter does not know are left out of the comparison, and named. `benchmarks/coverage/further.py` has
more models. Packages that are not installed are passed over: `pip install --no-deps --target FOLDER diffusers monai …`
makes them known to this harness alone.
"""

from __future__ import annotations

import argparse
import collections
import importlib
import logging
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.nn import functional

import rooflinekit as rk
from rooflinekit.errors import RooflinekitError
from rooflinekit.tracing.targets import declare_torchvision_operators

#: Products that torch's counter sees; attention is unfused there.
COUNTED = ("mm", "addmm", "bmm", "baddbmm", "convolution", "convolution_backward", "attention")
PRODUCTS_ELSEWHERE = (
    "_cudnn_rnn",
    "_grouped_mm",
    "einsum",
    "mv",
    "dot",
    "vdot",
    "addmv",
    "_trilinear",
    "deform_conv2d",
)


class _LateError(BaseException):
    """A question takes too long; no `except Exception` of a model's own code or of torch's keeps it."""


@dataclass
class Case:
    """A model and what it is called with."""

    capability: str
    name: str
    build: Callable[[], Any]
    inputs: str  # as on a command line, apart by blanks
    keywords: dict[str, str] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)  # of the trace
    sizes: dict[str, int] = field(default_factory=dict)  # of the comparison with a real run
    trains: bool = True
    runs: bool = True  # whether it can be run on the CPU at hand


@dataclass
class Outcome:
    """What came of a case: True, False, or None where it was not tried."""

    limit_s: int  # of CPU, for each question
    fixed: bool | None = None
    open: bool | None = None
    train: bool | None = None
    one: bool | None = None
    counts: bool | None = None
    notes: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    unclean: int = 0  # errors of other people's that came through


#: A small encoder and decoder of transformers.
ENCODER_DECODER = {
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "vocab_size": 99,
}
#: What is asked of a case, in this order.
ASKED = ("fixed", "open", "train", "one", "counts")
TRACED = ASKED[:3]
USUAL = {"n": 2, "h": 64, "w": 64, "s": 12, "t": 64, "d": 32, "e": 30, "v": 10}


def _inputs(case: Case) -> tuple[list[rk.Input], dict[str, rk.Input]]:
    return [rk.Input.parse(text) for text in case.inputs.split()], {
        name: rk.Input.parse(text) for name, text in case.keywords.items()
    }


def _sizes(case: Case, names: tuple[str, ...]) -> dict[str, int]:
    return {name: {**USUAL, **case.sizes}[name] for name in names}


def _names(case: Case) -> tuple[str, ...]:
    args, keywords = _inputs(case)
    return tuple(dict.fromkeys(name for given in (*args, *keywords.values()) for name in given.names))


def judged(case: Case, limit_s: int) -> Outcome:
    """All that is asked of a case, each question in so many seconds of CPU at most."""
    found = Outcome(limit_s)
    _limited(limit_s)
    with torch.device("cpu"):
        model = case.build()
    args, keywords = _inputs(case)
    names = _names(case)

    def trace(**options: Any) -> rk.Graph:
        return rk.trace(model, *args, **{**case.options, **options}, keywords=keywords)

    graphs: list[rk.Graph] = []

    def is_open() -> bool:
        graph = trace()
        graphs.append(graph)
        if graph.forced:
            found.notes.append("; ".join(map(str, graph.forced)))
        if graph.coverage.default_kinds:
            found.notes.append(f"by default: {', '.join(graph.coverage.default_kinds)}")
        return set(graph.dims) == set(names)

    def at_one() -> bool:
        small = {**_sizes(case, graphs[0].dims), "n": 1}
        forced = {one.name: one.value for one in graphs[0].forced}
        at, fixed = graphs[0].at(**small), trace(sizes={**_sizes(case, names), **forced, "n": 1}, fixed=True)
        if (at.flop, at.bytes) != (fixed.flop, fixed.bytes):
            found.notes.append(
                f"at 1: {at.flop} FLOP and {at.bytes} bytes, traced there {fixed.flop} and {fixed.bytes}"
            )
        return bool((at.flop, at.bytes) == (fixed.flop, fixed.bytes))

    found.fixed = _tried(found, "fixed", lambda: bool(trace(sizes=_sizes(case, names), fixed=True).ops))
    found.open = _tried(found, "open", is_open)
    if graphs and "n" in graphs[0].dims:
        found.one = _tried(found, "one", at_one)
    if case.trains:
        found.train = _tried(found, "train", lambda: bool(trace(mode="training", optimizer=torch.optim.SGD).ops))
    if case.runs:
        found.counts = _tried(found, "counts", lambda: _counted_right(case, model, trace, found))
    return found


def _tried(found: Outcome, what: str, do: Callable[[], bool]) -> bool:
    started = time.process_time()
    _limited(found.limit_s)
    try:
        return do()
    except (RooflinekitError, _LateError) as error:
        found.notes.append(f"{what}: {str(error).splitlines()[0][:230]}")
    except Exception as error:
        found.unclean += 1
        found.notes.append(f"{what}: NOT CLEAN {type(error).__name__}: {error}"[:230])
    finally:
        _limited(0)
        found.seconds[what] = time.process_time() - started
    return False


def _counted_right(case: Case, model: Any, trace: Callable[..., rk.Graph], found: Outcome) -> bool:
    """Products of a real forward pass, by torch's own counter, beside ours."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

    sizes = _sizes(case, _names(case))
    graph = trace(sizes=sizes, fixed=True)
    if graph.assumptions:
        found.notes.append(f"assumed: {'; '.join(map(str, graph.assumptions))}"[:160])
    ours, left_out = 0, set()
    for priced in graph.priced:
        kind = priced.op.kind.rpartition(".")[2]
        flop = sum(int(cost.dense_matrix_flop) for cost in priced.costs)
        if any(spec.dtype.is_complex for spec in priced.op.inputs):
            flop //= 4  # torch counts a complex multiplication and addition as if of real numbers: 2, not 8
        if any(kind == known or known == "attention" in kind for known in COUNTED):
            ours += flop
        elif flop:
            left_out.add(kind)
    args, keywords = _inputs(case)

    def real(given: rk.Input) -> torch.Tensor:
        shape = [sizes[size] if isinstance(size, str) else size for size in given.shape]
        dtype = getattr(torch, given.dtype.value)
        return torch.rand(shape).to(dtype) if dtype.is_floating_point else torch.ones(shape, dtype=dtype)

    if isinstance(model, nn.Module):
        model.eval()
        model.requires_grad_(False)  # the counter's hooks want a gradient's function, and there is none without one
    of_attention = {  # a model may ask for it
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: lambda q, k, v, *_, **__: sdpa_flop_count(q, k, v)
    }
    counter = FlopCounterMode(display=False, custom_mapping=of_attention)
    torch.backends.mha.set_fastpath_enabled(False)  # kernels that the counter does not know
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), counter:
        model(*map(real, args), **{name: real(given) for name, given in keywords.items()})
    theirs = counter.get_total_flops()
    if left_out:
        found.notes.append(f"unknown to torch's counter: {', '.join(sorted(left_out))}")
        return True
    if ours != theirs:
        found.notes.append(f"products {ours}, torch counts {theirs}")
    return ours == theirs


# --- public packages ----------------------------------------------------------------------------------------------


def of_torchvision() -> Iterator[Case]:
    from torchvision import models

    image = {"sizes": {"h": 224, "w": 224}}
    for name in (
        "alexnet",
        "convnext_tiny",
        "densenet121",
        "efficientnet_b0",
        "efficientnet_v2_s",
        "googlenet",
        "inception_v3",
        "mnasnet0_5",
        "mobilenet_v2",
        "mobilenet_v3_small",
        "regnet_y_400mf",
        "resnet18",
        "resnext50_32x4d",
        "shufflenet_v2_x0_5",
        "squeezenet1_0",
        "vgg11",
        "wide_resnet50_2",
    ):
        size = {"sizes": {"h": 299, "w": 299}} if name == "inception_v3" else image
        yield Case("torchvision", name, lambda name=name: models.get_model(name, weights=None), "n,3,h,w", **size)
    for name in ("vit_b_32", "swin_t", "swin_v2_t", "maxvit_t"):
        yield Case("torchvision", name, lambda name=name: models.get_model(name, weights=None), "n,3,224,224")
    for name in ("fcn_resnet50", "deeplabv3_mobilenet_v3_large", "lraspp_mobilenet_v3_large"):
        build = lambda name=name: models.get_model(name, weights=None, weights_backbone=None)  # noqa: E731
        yield Case("torchvision", name, build, "n,3,h,w", **image)
    for name in ("r3d_18", "mvit_v1_b"):
        yield Case(
            "torchvision",
            name,
            lambda name=name: models.get_model(name, weights=None),
            "n,3,16,112,112" if name == "r3d_18" else "n,3,16,224,224",
            runs=name == "r3d_18",
        )
    yield Case(
        "torchvision", "raft_small", lambda: models.get_model("raft_small", weights=None), "n,3,128,128 n,3,128,128"
    )
    for name in ("fasterrcnn_mobilenet_v3_large_fpn", "retinanet_resnet50_fpn", "ssdlite320_mobilenet_v3_large"):

        def detector(name: str = name) -> Callable[..., Any]:
            model = models.get_model(name, weights=None, weights_backbone=None).eval()
            return Detector(model)

        yield Case("detection", name, detector, "3,320,320", trains=False, runs=False)


class Detector(nn.Module):
    """Detectors take a list of images."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, image: torch.Tensor) -> Any:
        return self.model([image])


def of_transformers() -> Iterator[Case]:
    import transformers as t

    small = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "vocab_size": 99,
    }
    text = {"inputs": "n,s:int64"}
    for name in (
        "Llama",
        "Mistral",
        "Qwen2",
        "Qwen3",
        "Gemma",
        "Gemma2",
        "Phi",
        "Phi3",
        "StableLm",
        "Olmo2",
        "Cohere",
        "Starcoder2",
        "GPTNeoX",
        "Granite",
        "Glm",
    ):

        def build(name: str = name) -> Any:
            config = getattr(t, f"{name}Config")(**small, num_key_value_heads=2, pad_token_id=0, head_dim=8)
            return getattr(t, f"{name}ForCausalLM")(config)

        yield Case("transformers text", name, build, **text)
        if name in ("Llama", "Mistral", "Gemma2"):
            yield Case("transformers text", f"{name} without a cache", build, **text, options={"use_cache": False})
    for name in ("Mixtral", "Qwen2Moe", "Olmoe", "Qwen3Moe"):

        def experts(name: str = name) -> Any:
            more = {"num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
            config = getattr(t, f"{name}Config")(**small, num_key_value_heads=2, pad_token_id=0, **more)
            return getattr(t, f"{name}ForCausalLM")(config)

        yield Case("mixtures", name, experts, **text)
        yield Case("mixtures", f"{name} fp16", experts, **text, options={"dtype": "float16"}, runs=False)
        yield Case("mixtures", f"{name} autocast", experts, **text, options={"autocast": "bf16"}, runs=False)
    for name in ("Bert", "Roberta", "Electra", "Deberta", "Mpnet", "MegatronBert", "RoFormer"):
        family = {"Mpnet": "MPNet"}.get(name, name)

        def encoder(name: str = family) -> Any:
            return getattr(t, f"{name}Model")(getattr(t, f"{name}Config")(**small, max_position_embeddings=512))

        yield Case("transformers text", name, encoder, **text)
    yield Case("transformers text", "Bart", lambda: t.BartModel(t.BartConfig(**ENCODER_DECODER)), "n,s:int64")
    yield Case(
        "transformers text",
        "T5 encoder",
        lambda: t.T5EncoderModel(t.T5Config(d_model=32, d_ff=64, num_layers=2, num_heads=4, d_kv=8, vocab_size=99)),
        "n,s:int64",
    )
    yield Case(
        "transformers text",
        "GPT2",
        lambda: t.GPT2LMHeadModel(t.GPT2Config(n_embd=32, n_layer=2, n_head=4)),
        "n,s:int64",
    )
    yield Case(
        "transformers text",
        "Longformer",
        lambda: t.LongformerModel(t.LongformerConfig(**small, attention_window=[8, 8], pad_token_id=1)),
        "n,s:int64",
        sizes={"s": 16},
    )
    yield Case(
        "transformers text",
        "Mamba",
        lambda: t.MambaModel(t.MambaConfig(hidden_size=32, num_hidden_layers=2, state_size=4, vocab_size=99)),
        "n,s:int64",
    )
    image = {**small, "image_size": 32, "patch_size": 8}
    for name in ("ViT", "DeiT", "Dinov2", "BeiT", "Siglip"):
        family, configuration = {"BeiT": ("Beit", "Beit"), "Siglip": ("SiglipVision", "SiglipVision")}.get(
            name, (name, name)
        )

        def seeing(family: str = family, configuration: str = configuration) -> Any:
            return getattr(t, f"{family}Model")(getattr(t, f"{configuration}Config")(**image))

        yield Case("transformers vision", name, seeing, "n,3,32,32")
    yield Case(
        "transformers vision",
        "DETR",
        lambda: t.DetrModel(
            t.DetrConfig(
                **{k: v for k, v in ENCODER_DECODER.items() if k != "vocab_size"},
                num_queries=7,
                use_timm_backbone=True,
                use_pretrained_backbone=False,
                backbone="resnet18",
            )
        ),
        "n,3,h,w",
        sizes={"h": 64, "w": 64},
    )
    yield Case(
        "transformers vision",
        "SegFormer",
        lambda: t.SegformerModel(t.SegformerConfig(depths=[1, 1, 1, 1], hidden_sizes=[8, 16, 24, 32])),
        "n,3,h,w",
        sizes={"h": 64, "w": 64},
    )
    yield Case(
        "transformers vision",
        "ConvNext",
        lambda: t.ConvNextModel(t.ConvNextConfig(depths=[1, 1, 1, 1], hidden_sizes=[8, 16, 24, 32])),
        "n,3,h,w",
        sizes={"h": 64, "w": 64},
    )
    sound = {
        "conv_dim": (16, 16),
        "conv_kernel": (10, 3),
        "conv_stride": (5, 2),
        "num_feat_extract_layers": 2,
        "num_conv_pos_embeddings": 16,
        "num_conv_pos_embedding_groups": 4,
    }
    for name in ("Wav2Vec2", "Hubert"):

        def hearing(name: str = name) -> Any:
            return getattr(t, f"{name}Model")(getattr(t, f"{name}Config")(**small, **sound))

        yield Case("transformers sound", name, hearing, "n,t", sizes={"t": 4000})
    yield Case(
        "transformers sound",
        "Whisper encoder",
        lambda: (
            t.WhisperModel(
                t.WhisperConfig(**ENCODER_DECODER, num_mel_bins=8, max_source_positions=50, pad_token_id=0)
            ).encoder
        ),
        "n,8,100",
    )


def of_diffusers() -> Iterator[Case]:
    import diffusers as d

    blocks = {"block_out_channels": (32, 64)}
    yield Case(
        "diffusers",
        "UNet2D",
        lambda: d.UNet2DModel(
            sample_size=32,
            **blocks,
            down_block_types=("DownBlock2D", "AttnDownBlock2D"),
            up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        ),
        "n,3,h,w n:int64",
        sizes={"h": 32, "w": 32},
    )
    yield Case(
        "diffusers",
        "UNet2DCondition",
        lambda: d.UNet2DConditionModel(
            sample_size=16,
            **blocks,
            cross_attention_dim=32,
            attention_head_dim=8,
            down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
            up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        ),
        "n,4,h,w n:int64 n,7,32",
        sizes={"h": 16, "w": 16},
    )
    yield Case(
        "diffusers", "AutoencoderKL", lambda: d.AutoencoderKL(block_out_channels=(32,), norm_num_groups=8), "n,3,h,w"
    )
    yield Case("diffusers", "VQModel", lambda: d.VQModel(block_out_channels=(32,), norm_num_groups=8), "n,3,h,w")
    yield Case(
        "diffusers",
        "DiT",
        lambda: d.DiTTransformer2DModel(num_attention_heads=2, attention_head_dim=8, num_layers=1, sample_size=8),
        "n,4,8,8",
        keywords={"timestep": "n:int64", "class_labels": "n:int64"},
        trains=False,
    )
    yield Case(
        "diffusers",
        "PixArt",
        lambda: d.PixArtTransformer2DModel(
            num_attention_heads=2,
            attention_head_dim=8,
            num_layers=1,
            sample_size=8,
            caption_channels=16,
            cross_attention_dim=16,
        ),
        "n,4,8,8",
        keywords={"timestep": "n:int64", "encoder_hidden_states": "n,5,16"},
        options={"added_cond_kwargs": {"resolution": None, "aspect_ratio": None}},
        runs=False,
    )


def of_monai() -> Iterator[Case]:
    from monai.networks import nets

    volume = {"sizes": {"h": 32, "w": 32}}
    plain = {"spatial_dims": 2, "in_channels": 1, "out_channels": 2}
    yield Case("monai", "UNet", lambda: nets.UNet(**plain, channels=(4, 8, 16), strides=(2, 2)), "n,1,h,w", **volume)
    yield Case(
        "monai",
        "UNet 3D",
        lambda: nets.UNet(spatial_dims=3, in_channels=1, out_channels=2, channels=(4, 8), strides=(2,)),
        "n,1,16,h,w",
        **volume,
    )
    yield Case(
        "monai", "BasicUNet", lambda: nets.BasicUNet(spatial_dims=2, features=(4, 4, 8, 8, 16, 4)), "n,1,h,w", **volume
    )
    yield Case("monai", "SegResNet", lambda: nets.SegResNet(spatial_dims=2, init_filters=8), "n,1,h,w", **volume)
    yield Case("monai", "VNet", lambda: nets.VNet(spatial_dims=2, in_channels=1, out_channels=2), "n,1,32,32")
    yield Case(
        "monai",
        "DynUNet",
        lambda: nets.DynUNet(**plain, kernel_size=[3, 3, 3], strides=[1, 2, 2], upsample_kernel_size=[2, 2]),
        "n,1,h,w",
        **volume,
    )
    yield Case(
        "monai",
        "AttentionUnet",
        lambda: nets.AttentionUnet(**plain, channels=(4, 8, 16), strides=(2, 2)),
        "n,1,h,w",
        **volume,
    )
    yield Case(
        "monai",
        "UNETR",
        lambda: nets.UNETR(
            in_channels=1,
            out_channels=2,
            img_size=32,
            feature_size=8,
            hidden_size=32,
            mlp_dim=64,
            num_heads=4,
            spatial_dims=2,
        ),
        "n,1,32,32",
    )
    yield Case("monai", "DenseNet121", lambda: nets.DenseNet121(**plain), "n,1,h,w", sizes={"h": 64, "w": 64})
    yield Case(
        "monai",
        "HighResNet",
        lambda: nets.HighResNet(spatial_dims=2, in_channels=1, out_channels=2),
        "n,1,h,w",
        **volume,
    )


def of_graphs() -> Iterator[Case]:
    from torch_geometric import nn as g

    graph = {"inputs": "v,8 2,e:int64"}
    layers: dict[str, Callable[[], Any]] = {
        "GCN": lambda: g.GCNConv(8, 16),
        "GAT": lambda: g.GATConv(8, 4, heads=2),
        "GATv2": lambda: g.GATv2Conv(8, 4, heads=2),
        "SAGE": lambda: g.SAGEConv(8, 16),
        "GIN": lambda: g.GINConv(nn.Linear(8, 16)),
        "Graph": lambda: g.GraphConv(8, 16),
        "Cheb": lambda: g.ChebConv(8, 16, K=2),
        "TAG": lambda: g.TAGConv(8, 16),
        "SG": lambda: g.SGConv(8, 16),
        "ARMA": lambda: g.ARMAConv(8, 16),
        "Transformer": lambda: g.TransformerConv(8, 4, heads=2),
        "Edge": lambda: g.EdgeConv(nn.Linear(16, 16)),
        "LE": lambda: g.LEConv(8, 16),
        "GCN2 stack": lambda: g.GCN(8, 16, 2),
        "ResGated": lambda: g.ResGatedGraphConv(8, 16),
    }
    for name, build in layers.items():
        yield Case("graphs", name, build, **graph)


def of_segmentation() -> Iterator[Case]:
    import segmentation_models_pytorch as smp

    for name in ("Unet", "UnetPlusPlus", "FPN", "PSPNet", "Linknet", "PAN", "MAnet", "DeepLabV3", "Segformer"):
        build = lambda name=name: getattr(smp, name)("resnet18", encoder_weights=None)  # noqa: E731
        yield Case("segmentation", name, build, "n,3,h,w", sizes={"h": 128, "w": 128})


def of_lucidrains() -> Iterator[Case]:
    import vit_pytorch as v
    import x_transformers as x

    image = {"image_size": 32, "patch_size": 8, "num_classes": 10, "dim": 32, "depth": 2, "heads": 2, "mlp_dim": 64}
    yield Case("lucidrains", "ViT", lambda: v.ViT(**image), "n,3,32,32")
    for place, name, more in (
        ("simple_vit", "SimpleViT", {}),
        ("cait", "CaiT", {"cls_depth": 1}),
        ("deepvit", "DeepViT", {}),
        ("parallel_vit", "ViT", {"num_parallel_branches": 2}),
        ("vit_for_small_dataset", "ViT", {}),
        ("xcit", "XCiT", {"cls_depth": 1}),
    ):

        def build(place: str = place, name: str = name, more: dict[str, int] = more) -> Any:
            return getattr(importlib.import_module(f"vit_pytorch.{place}"), name)(**image, **more)

        yield Case("lucidrains", f"{place}.{name}", build, "n,3,32,32")

    def decoder(**more: Any) -> Any:
        return x.TransformerWrapper(
            num_tokens=99, max_seq_len=64, attn_layers=x.Decoder(dim=32, depth=2, heads=2, **more)
        )

    for name, more in {
        "plain": {},
        "rotary": {"rotary_pos_emb": True},
        "alibi": {"alibi_pos_bias": True},
        "glu": {"ff_glu": True},
        "relative": {"rel_pos_bias": True},
        "flash": {"attn_flash": True},
        "one head of keys": {"attn_one_kv_head": True},
    }.items():
        yield Case("lucidrains", f"x-transformers {name}", lambda more=more: decoder(**more), "n,s:int64")


def of_others() -> Iterator[Case]:
    def mamba() -> Any:
        from mambapy.mamba import Mamba, MambaConfig

        return Mamba(MambaConfig(d_model=16, n_layers=1))

    def fno() -> Any:
        from neuralop.models import FNO

        return FNO(n_modes=(4, 4), in_channels=1, out_channels=1, hidden_channels=8, n_layers=2)

    def clip() -> Any:
        import open_clip

        return open_clip.create_model("ViT-B-32", pretrained=None, load_weights=False).visual

    def yolo(name: str) -> Any:
        from ultralytics import YOLO

        return YOLO(f"{name}.yaml").model

    def tabnet() -> Any:
        from pytorch_tabnet.tab_network import TabNet

        return TabNet(8, 2, group_attention_matrix=torch.eye(8))

    yield Case("others", "mambapy", mamba, "n,16,16")
    yield Case("others", "FNO", fno, "n,1,16,16")
    yield Case("others", "open_clip", clip, "n,3,224,224")
    for name in ("yolov8n", "yolo11n", "yolov5n"):
        yield Case("others", name, lambda name=name: yolo(name), "n,3,h,w", sizes={"h": 64, "w": 64}, trains=False)
    yield Case("others", "TabNet", tabnet, "n,8")
    yield Case(
        "others",
        "local attention",
        lambda: importlib.import_module("local_attention").LocalTransformer(
            num_tokens=99, dim=32, depth=1, max_seq_len=64, local_attn_window_size=16
        ),
        "n,32:int64",
    )
    yield Case(
        "others",
        "performer",
        lambda: importlib.import_module("performer_pytorch").Performer(dim=32, depth=1, heads=2, dim_head=16),
        "n,s,32",
    )
    yield Case(
        "others",
        "VQ",
        lambda: importlib.import_module("vector_quantize_pytorch").VectorQuantize(dim=8, codebook_size=16),
        "n,s,8",
        trains=False,
    )


# --- small ones that do what networks do only now and then ----------------------------------------------------------


class Odd(nn.Module):
    """A layer before a function, so that there is something to train."""

    def __init__(self, function: Callable[..., Any], width: int = 8) -> None:
        super().__init__()
        self.layer = nn.Linear(width, width)
        self.function = function

    def forward(self, x: torch.Tensor, *others: torch.Tensor) -> Any:
        return self.function(self.layer(x), *others)


class Recurrent(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.layer = getattr(nn, kind)(8, 16, **({} if "Cell" in kind else {"batch_first": True}))

    def forward(self, x: torch.Tensor) -> Any:
        return self.layer(x)


class Hidden(nn.Module):
    """Keeps what it computes in lists, dicts and objects."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.seen, self.memory = nn.Linear(8, 8), [], {}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        self.seen.append(y)
        self.memory["last"] = y
        return y


class Gated(nn.Module):
    """Two of four experts for each row, taken by a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(8, 4), nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, places = self.gate(x).softmax(-1).topk(2, -1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            row, slot = torch.where(places == number)
            out.index_add_(0, row, expert(x[row]) * weights[row, slot, None])
        return out


def odd_ones() -> Iterator[Case]:
    from torch._higher_order_ops.scan import scan
    from torch.nn.attention import flex_attention as flex
    from torch.nn.utils import parametrizations

    f = functional
    rows = {
        "autograd function": lambda x: _Twice.apply(x),
        "bincount": lambda x: x * torch.bincount(x.int()[:, 0], minlength=8)[:8],
        "boolean mask": lambda x: x[x > 0],
        "cdist": lambda x: torch.cdist(x, x),
        "cholesky": lambda x: torch.linalg.cholesky(x.T @ x + torch.eye(8)),
        "cond": lambda x: torch.cond(x.sum() > 0, lambda x: x @ x.T, lambda x: x @ x.T * 2, (x,)),
        "cumsum": lambda x: x.cumsum(0),
        "cuda asked for": lambda x: x.cuda() + torch.ones(8, device="cuda"),
        "distribution": lambda x: torch.distributions.Normal(x, x.exp()).rsample(),
        "einsum": lambda x: torch.einsum("nd,md->nm", x, x),
        "fft": lambda x: torch.fft.rfft(x).abs(),
        "irfft": lambda x: torch.fft.irfft(torch.fft.rfft(x)),
        "item": lambda x: x * x.sum().item(),
        "matrix power": lambda x: torch.linalg.matrix_power(x.T @ x, 3),
        "nonzero": lambda x: x[(x[:, 0] > 0).nonzero()[:, 0]],
        "one hot": lambda x: f.one_hot(x.argmax(-1), 8).float() @ x.T,
        "padding to a multiple": lambda x: f.pad(x, (0, 0, 0, -x.shape[0] % 8)),
        "QR": lambda x: torch.linalg.qr(x.T @ x)[0],
        "rolled": lambda x: x.roll(1, 0) @ x.T,
        "scan": lambda x: scan(lambda c, y: (c + y, c * y), torch.zeros(8), torch.ones(3, 8) + x.sum(), dim=0)[0],
        "scatter": lambda x: torch.zeros_like(x).scatter_add_(0, x.argsort(0), x),
        "sort": lambda x: x.sort(-1)[0],
        "strided": lambda x: x.as_strided((x.shape[0], 2, 4), (8, 4, 1)) @ torch.ones(4, 4),
        "svd": lambda x: torch.linalg.svdvals(x.T @ x),
        "topk": lambda x: x.topk(3)[0],
        "unfold": lambda x: x.unfold(1, 4, 2) @ torch.ones(4, 4),
        "unique": lambda x: torch.unique(x, dim=0),
        "vmap": lambda x: torch.vmap(lambda r: r @ r)(x),
        "where": lambda x: torch.where(x > 0, x, 0.1 * x) @ x.T,
        "bernoulli": lambda x: x * torch.bernoulli(torch.sigmoid(x)),
        "checks of data": lambda x: x if (x == x).all() else -x,
    }
    for name, function in rows.items():
        runs = name not in ("cuda asked for", "cond", "scan")
        yield Case(
            "odd",
            name,
            lambda function=function: Odd(function),
            "n,8",
            runs=runs,
            trains=name not in ("unique", "item", "cond"),
        )
    for kind in ("LSTM", "GRU", "RNN"):
        yield Case("recurrent", kind, lambda kind=kind: Recurrent(kind), "n,s,8")
    for kind in ("LSTMCell", "GRUCell", "RNNCell"):
        yield Case("recurrent", kind, lambda kind=kind: Recurrent(kind), "n,8")
    yield Case("odd", "state outside of buffers", Hidden, "n,8")
    yield Case("mixtures", "by where", Gated, "n,8", sizes={"n": 16}, runs=False)
    yield Case("odd", "weight norm", lambda: parametrizations.weight_norm(nn.Linear(8, 8)), "n,8")
    yield Case("odd", "spectral norm", lambda: parametrizations.spectral_norm(nn.Linear(8, 8)), "n,8")
    yield Case("odd", "orthogonal", lambda: parametrizations.orthogonal(nn.Linear(8, 8)), "n,8", trains=False)
    yield Case("odd", "long kernel", lambda: nn.Conv1d(16, 16, 11), "n,16,t")
    yield Case("odd", "transposed convolution", lambda: nn.ConvTranspose2d(4, 8, 3, stride=2), "n,4,h,w")
    yield Case("odd", "depthwise", lambda: nn.Conv2d(8, 8, 3, groups=8), "n,8,h,w")
    yield Case("odd", "bilinear", lambda: nn.Bilinear(8, 8, 4), "n,8 n,8")
    yield Case("odd", "embedding bag", lambda: nn.EmbeddingBag(99, 8), "n,s:int64")
    yield Case(
        "odd", "broadcast attention", lambda: f.scaled_dot_product_attention, "1,2,s,8 n,2,t,8 n,2,t,8", trains=False
    )
    yield Case(
        "odd",
        "flexible attention",
        lambda: lambda q: flex.flex_attention(q, q, q),
        "2,2,128,16",
        trains=False,
        runs=False,
    )
    yield Case("odd", "transformer", lambda: nn.Transformer(16, 2, 1, 1, 32, batch_first=True), "n,s,16 n,t,16")
    yield Case(
        "odd",
        "short-time transform",
        lambda: lambda x: torch.stft(x, 64, 16, window=torch.hann_window(64), return_complex=True).abs(),
        "n,t",
        sizes={"t": 400},
        trains=False,
    )
    yield Case(
        "odd",
        "affine grid",
        lambda: (
            lambda a, x: f.grid_sample(x, f.affine_grid(a, list(x.shape), align_corners=False), align_corners=False)
        ),
        "n,2,3 n,3,h,w",
        trains=False,
    )
    yield Case(
        "odd",
        "CTC",
        lambda: lambda x, y: f.ctc_loss(x.log_softmax(-1), y, (30, 30), (5, 5)),
        "30,2,9 2,5:int64",
        trains=False,
    )
    yield Case(
        "odd",
        "quantized",
        lambda: torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(8, 8)), {nn.Linear}),
        "n,8",
        trains=False,
    )


class _Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad * 2


Sources: TypeAlias = Sequence[Callable[[], Iterator[Case]]]
SOURCES: Sources = (
    of_torchvision,
    of_transformers,
    of_diffusers,
    of_monai,
    of_graphs,
    of_segmentation,
    of_lucidrains,
    of_others,
    odd_ones,
)


def cases(sources: Sources, word: str) -> Iterator[Case]:
    """All whose name or capability has the word, of the packages that can be imported."""
    for source in sources:
        try:
            found = list(source())
        except ImportError as error:
            print(f"{source.__name__} passed over: {error}", file=sys.stderr)
            continue
        yield from (case for case in found if word.lower() in f"{case.capability} {case.name}".lower())


def _late(*_: Any) -> None:
    raise _LateError("takes too long")


def _limited(seconds: int) -> None:
    """_late is called after so many seconds of CPU; 0 for never."""
    signal.setitimer(signal.ITIMER_PROF, seconds)


def main(sources: Sources = SOURCES) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--site", action="append", default=[], help="a folder of further packages")
    parser.add_argument("--only", default="", help="a word of a name or a capability")
    parser.add_argument("--limit_s", type=int, default=120, help="seconds of CPU for a question")
    parser.add_argument("--verbose", action="store_true", help="with the notes of cases that work")
    given = parser.parse_args()
    sys.path += given.site
    warnings.simplefilter("ignore")
    torch._logging.set_logs(all=logging.CRITICAL)
    torch.manual_seed(0)
    declare_torchvision_operators()
    signal.signal(signal.SIGPROF, _late)
    totals: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    slowest = (0.0, "")
    for case in cases(sources, given.only):
        started = time.process_time()
        try:
            found = judged(case, given.limit_s)
        except (Exception, _LateError) as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            reason = f"cannot be built: {error} ({place.name})".replace("\n", " ")[:200]
            totals[case.capability]["not built"] += 1
            print(f"  -    {case.capability:20} {case.name:34} {reason}", flush=True)
            continue
        finally:
            _limited(0)
        totals[case.capability].update(cases=1, unclean=found.unclean)
        slowest = max(slowest, *((found.seconds.get(what, 0.0), f"{case.name}, {what}") for what in TRACED))
        words = []
        for what in ASKED:
            answer = getattr(found, what)
            if answer is not None:
                totals[case.capability][what] += answer
                totals[case.capability][f"of {what}"] += 1
            words.append("." if answer is None else "+" if answer else what)
        if given.verbose or len(words) != sum(word in ".+" for word in words):
            seconds = time.process_time() - started
            print(f"{' '.join(words):30} {case.capability:20} {case.name:34} {seconds:5.1f} s", flush=True)
            for note in found.notes:
                print(f"{'':32}{note}", flush=True)
    whole: collections.Counter[str] = collections.Counter()
    print(f"\n{'capability':22}{'cases':>6}{'fixed':>10}{'open':>10}{'trained':>10}{'at 1':>10}{'counted':>10}")
    for capability, counts in totals.items():
        whole.update(counts)
        print(_line(capability, counts))
    print(_line("all", whole))
    print(f"slowest trace {slowest[0]:.1f} s of CPU ({slowest[1]})")
    print(f"errors that are not this package's own: {whole['unclean']}")


def _line(name: str, counts: collections.Counter[str]) -> str:
    parts = "".join(f"{counts[what]:>5} /{counts[f'of {what}']:>3}" for what in ASKED)
    return f"{name:22}{counts['cases']:>6} {parts}" + (
        f"  ({counts['not built']} not built)" if counts["not built"] else ""
    )


if __name__ == "__main__":
    main()
