"""A hundred models that nothing here was developed with, judged as `benchmarks/coverage/foreign.py` judges.

    python -m benchmarks.coverage.further [--only WORD] [--limit_s 30] [--verbose]

Networks of timm and transformers that no other list has, the latter in small configurations, and modules written by
hand that use what networks use now and then: function transforms, checkpoints, parametrizations, complex numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional as f

from benchmarks.coverage.foreign import ENCODER_DECODER, Case, Odd, main

IMAGES = (
    "cait_xxs24_224 coat_tiny convmixer_768_32 crossvit_tiny_240 cspresnet50 darknet53 dla34 dpn68b ecaresnet50t "
    "eca_nfnet_l0 efficientformer_l1 fastvit_t8 gcresnet50t ghostnet_100 hardcorenas_a hrnet_w18 inception_v4 "
    "lcnet_050 levit_128 mixnet_s mixer_s16_224 mobilevit_xs nest_tiny poolformer_s12 pvt_v2_b1 repvgg_b0 "
    "res2net50_14w_8s resmlp_12_224 sebotnet33ts_256 tresnet_m twins_svt_small vit_tiny_patch16_224 volo_d1_224 "
    "xcit_nano_12_p8_224"
)


def of_timm() -> Iterator[Case]:
    import timm

    for name in IMAGES.split():
        if not timm.is_model(name):
            continue
        size = ",".join(map(str, timm.get_pretrained_cfg(name).input_size))
        yield Case("images", name, lambda name=name: timm.create_model(name), f"n,{size}")


SMALL = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 99,
    "pad_token_id": 0,
}
HEADS = {"num_key_value_heads": 2, "head_dim": 8}
# architecture: the configuration's class without "Config", and what it takes
TEXT: dict[str, tuple[str, dict[str, Any]]] = {
    "SmolLM3ForCausalLM": ("SmolLM3", SMALL | HEADS),
    "Olmo3ForCausalLM": ("Olmo3", SMALL | HEADS),
    "Gemma3ForCausalLM": ("Gemma3Text", SMALL | HEADS),
    "Glm4ForCausalLM": ("Glm4", SMALL | HEADS),
    "HeliumForCausalLM": ("Helium", SMALL | HEADS),
    "PersimmonForCausalLM": ("Persimmon", SMALL),
    "NemotronForCausalLM": ("Nemotron", SMALL | HEADS),
    "Exaone4ForCausalLM": ("Exaone4", SMALL | HEADS),
    "Ernie4_5ForCausalLM": ("Ernie4_5", SMALL | HEADS),
    "DiffLlamaForCausalLM": ("DiffLlama", SMALL | HEADS),
    "BitNetForCausalLM": ("BitNet", SMALL | HEADS),
    "ArceeForCausalLM": ("Arcee", SMALL | HEADS),
    "JetMoeForCausalLM": ("JetMoe", SMALL | {"num_key_value_heads": 2, "kv_channels": 8, "num_local_experts": 2}),
    "GraniteMoeForCausalLM": ("GraniteMoe", SMALL | {"num_key_value_heads": 2, "num_local_experts": 4}),
    "GPTBigCodeForCausalLM": ("GPTBigCode", {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 99}),
    "GPTJForCausalLM": ("GPTJ", {"n_embd": 32, "n_layer": 2, "n_head": 4, "rotary_dim": 4, "vocab_size": 99}),
    "CodeGenForCausalLM": ("CodeGen", {"n_embd": 32, "n_layer": 2, "n_head": 4, "rotary_dim": 4, "vocab_size": 99}),
    "MptForCausalLM": ("Mpt", {"d_model": 32, "n_heads": 4, "n_layers": 2, "vocab_size": 99}),
    "XGLMForCausalLM": (
        "XGLM",
        {"d_model": 32, "ffn_dim": 64, "num_layers": 2, "attention_heads": 4, "vocab_size": 99},
    ),
    "FNetModel": ("FNet", SMALL),
    "CanineModel": ("Canine", SMALL),
    "ConvBertModel": ("ConvBert", SMALL | {"embedding_size": 32}),
    "SqueezeBertModel": ("SqueezeBert", SMALL | {"embedding_size": 32}),
    "NystromformerModel": ("Nystromformer", SMALL | {"num_landmarks": 4, "segment_means_seq_len": 16}),
    "BigBirdModel": ("BigBird", SMALL | {"block_size": 8, "num_random_blocks": 2}),
    "RwkvModel": ("Rwkv", {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 99}),
    "FalconMambaModel": ("FalconMamba", {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 4, "vocab_size": 99}),
    "Mamba2Model": (
        "Mamba2",
        {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 8, "num_heads": 8, "head_dim": 8, "vocab_size": 99}
        | {"n_groups": 2, "chunk_size": 16},
    ),
    "RecurrentGemmaForCausalLM": (
        "RecurrentGemma",  # its third layer is the first of attention, without which it has no cache to ask
        SMALL | {"num_hidden_layers": 3, "num_key_value_heads": 2, "attention_window_size": 16},
    ),
    "JambaForCausalLM": (
        "Jamba",
        SMALL
        | {"num_key_value_heads": 2, "use_mamba_kernels": False, "num_experts": 2, "attn_layer_period": 2}
        | {"attn_layer_offset": 1, "expert_layer_period": 2, "mamba_d_state": 4},
    ),
    "PegasusModel": ("Pegasus", ENCODER_DECODER),
    "MBartModel": ("MBart", ENCODER_DECODER),
    "BlenderbotSmallModel": ("BlenderbotSmall", ENCODER_DECODER),
    "M2M100Model": ("M2M100", ENCODER_DECODER),
}
OF_TWO_TEXTS = ("PegasusModel", "BlenderbotSmallModel", "M2M100Model")  # they make no input of the decoder themselves
PICTURES: dict[str, tuple[str, dict[str, Any], str]] = {
    "ViTMAEModel": ("ViTMAE", SMALL | {"image_size": 32, "patch_size": 8}, "n,3,32,32"),
    "ViTMSNModel": ("ViTMSN", SMALL | {"image_size": 32, "patch_size": 8}, "n,3,32,32"),
    "IJepaModel": ("IJepa", SMALL | {"image_size": 32, "patch_size": 8}, "n,3,32,32"),
    "YolosModel": ("Yolos", SMALL | {"image_size": [32, 32], "patch_size": 8}, "n,3,32,32"),
    "DPTModel": ("DPT", SMALL | {"image_size": 32, "patch_size": 8, "is_hybrid": False}, "n,3,32,32"),
    "MobileNetV1Model": ("MobileNetV1", {"depth_multiplier": 0.25}, "n,3,64,64"),
    "RegNetModel": ("RegNet", {"hidden_sizes": [16, 16, 32, 32], "depths": [1, 1, 1, 1], "groups_width": 8}, "n,3,h,w"),
    "PoolFormerModel": ("PoolFormer", {"hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1]}, "n,3,64,64"),
    "ASTModel": ("AST", SMALL | {"max_length": 64, "num_mel_bins": 32}, "n,64,32"),
    "SEWModel": ("SEW", SMALL | {"conv_dim": (16, 16), "conv_kernel": (10, 3), "conv_stride": (5, 2)}, "n,16000"),
}


def of_transformers() -> Iterator[Case]:
    import transformers as t

    def built(name: str, config: str, options: dict[str, Any]) -> Callable[[], Any]:
        return lambda: getattr(t, name)(getattr(t, f"{config}Config")(**options))

    for name, (config, options) in TEXT.items():
        inputs = "n,16:int64" if name == "NystromformerModel" else "n,s:int64"  # its landmarks are of one length
        targets = {"decoder_input_ids": "n,t:int64"} if name in OF_TWO_TEXTS else {}
        sizes = {"s": 96 if "BigBird" in name else 32}
        yield Case("text", name, built(name, config, options), inputs, keywords=targets, sizes=sizes)
    for name, (config, options, inputs) in PICTURES.items():
        yield Case("pictures, sound", name, built(name, config, options), inputs)


class Called(nn.Module):
    """Two layers that a function is given to use as it likes."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.first, self.second, self.function = nn.Linear(8, 16), nn.Linear(16, 8), function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self, x)


class LowRank(nn.Module):
    """A parametrization: what is added to a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.zeros(8, 2)), nn.Parameter(torch.zeros(2, 8))

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight + self.a @ self.b


class Equilibrium(nn.Module):
    """A fixed point: twenty rounds without gradients, one with."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = torch.zeros_like(x)
        with torch.no_grad():
            for _ in range(20):
                z = torch.tanh(self.layer(z) + x)
        return torch.tanh(self.layer(z) + x)


class Memory(nn.Module):
    """A buffer of keys that each step moves on."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.register_buffer("keys", torch.zeros(64, 8))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        self.keys.copy_(torch.cat([self.keys, y.detach()])[-64:])
        self.steps += 1
        return (y @ self.keys.T).softmax(-1) @ self.keys


class Message(nn.Module):
    """A layer of a graph network, written with scatters."""

    def __init__(self) -> None:
        super().__init__()
        self.message, self.update = nn.Linear(16, 8), nn.GRUCell(8, 8)

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        source, target = edges
        sent = self.message(torch.cat([x[source], x[target]], -1)).relu()
        most = torch.full_like(x, -math.inf).scatter_reduce_(
            0, target[:, None].expand_as(sent), sent, reduce="amax", include_self=True
        )
        return self.update(torch.zeros_like(x).index_add_(0, target, sent) + most.nan_to_num(), x)


class Spectral(nn.Module):
    """A layer of a Fourier neural operator, with complex weights."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(8, 8, 5, dtype=torch.complex64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        modes = torch.fft.rfft(x)
        out = torch.zeros_like(modes)
        out[..., :5] = torch.einsum("bik,iok->bok", modes[..., :5], self.weight)
        return torch.fft.irfft(out, n=x.shape[-1])


class Coupling(nn.Module):
    """A flow's layer and the logarithm of its determinant."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 8))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        kept, changed = x.chunk(2, -1)
        scale, shift = self.net(kept).chunk(2, -1)
        return torch.cat([kept, changed * scale.tanh().exp() + shift], -1), scale.tanh().sum(-1)


def transformed() -> dict[str, Callable[[Called, torch.Tensor], Any]]:
    """By name, what is done with the two layers."""
    from torch import func
    from torch.utils.checkpoint import checkpoint, checkpoint_sequential

    def plain(m: Called, x: torch.Tensor) -> torch.Tensor:
        return m.second(m.first(x).tanh())

    def ensemble(m: Called, x: torch.Tensor) -> torch.Tensor:
        weights = {"weight": m.first.weight.expand(3, -1, -1), "bias": m.first.bias.expand(3, -1)}
        return torch.vmap(lambda w: func.functional_call(m.first, w, (x,)))(weights)

    def adapted(m: Called, x: torch.Tensor) -> torch.Tensor:
        weights = dict(m.first.named_parameters())
        slopes = func.grad(lambda w: func.functional_call(m.first, w, (x,)).square().mean())(weights)
        return func.functional_call(m.first, {k: w - 0.1 * slopes[k] for k, w in weights.items()}, (x,))

    def per_sample(m: Called, x: torch.Tensor) -> Any:
        weights = dict(m.first.named_parameters())
        loss = lambda w, row: func.functional_call(m.first, w, (row,)).square().sum()  # noqa: E731
        return func.vmap(func.grad(loss), in_dims=(None, 0))(weights, x)

    def penalty(m: Called, x: torch.Tensor) -> torch.Tensor:
        x = x.detach().requires_grad_()
        (slope,) = torch.autograd.grad(plain(m, x).sum(), x, create_graph=True)
        return slope.norm(dim=-1)

    def autocast(m: Called, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            return plain(m, x)

    return {
        "functional_call": lambda m, x: func.functional_call(m.first, dict(m.first.named_parameters()), (x,)),
        "vmap of functional_call": ensemble,
        "an inner step of gradient": adapted,
        "gradients of each sample": per_sample,
        "jacrev": lambda m, x: torch.vmap(func.jacrev(lambda r: plain(m, r)))(x),
        "jacfwd": lambda m, x: torch.vmap(func.jacfwd(lambda r: plain(m, r)))(x),
        "hessian": lambda m, x: torch.vmap(func.hessian(lambda r: plain(m, r).sum()))(x),
        "jvp": lambda m, x: func.jvp(lambda r: plain(m, r), (x,), (torch.ones_like(x),))[1],
        "product with a hessian": lambda m, x: func.jvp(
            func.grad(lambda r: plain(m, r).sum()), (x,), (torch.ones_like(x),)
        )[1],
        "converted": lambda m, x: m.second.to(x.device, x.dtype)(m.first(x)),
        "vjp": lambda m, x: func.vjp(lambda r: plain(m, r), x)[1](torch.ones_like(x))[0],
        "gradient penalty": penalty,
        "checkpoint": lambda m, x: checkpoint(lambda r: plain(m, r), x, use_reentrant=False),
        "reentrant checkpoint": lambda m, x: checkpoint(m.second, m.first(x), use_reentrant=True),
        "checkpointed sequence": lambda m, x: checkpoint_sequential(
            nn.Sequential(m.first, m.second), 2, x, use_reentrant=False
        ),
        "autocast": autocast,
        "compiled part": lambda m, x: torch.compile(m.second)(m.first(x)),
        "saved tensors' hooks": lambda m, x: _packed(plain, m, x),
    }


def _packed(plain: Callable[..., torch.Tensor], m: Called, x: torch.Tensor) -> torch.Tensor:
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.to(torch.bfloat16), lambda t: t.float()):
        return plain(m, x)


def by_hand() -> Iterator[Case]:
    from torch.nn.utils import parametrizations, parametrize, prune

    def low_rank() -> nn.Module:
        layer = nn.Linear(8, 8)
        parametrize.register_parametrization(layer, "weight", LowRank())
        return layer

    for name, function in transformed().items():
        yield Case("transforms", name, lambda function=function: Called(function), "n,8", runs=False)
    for name, build, inputs in (
        ("weight norm of old", lambda: nn.utils.weight_norm(nn.Conv1d(8, 8, 3)), "n,8,t"),
        ("spectral norm of old", lambda: nn.utils.spectral_norm(nn.Conv2d(8, 8, 3)), "n,8,h,w"),
        ("low rank", low_rank, "n,8"),
        ("pruned", lambda: prune.l1_unstructured(nn.Linear(8, 8), "weight", 0.5), "n,8"),
        ("weight norm of a convolution", lambda: parametrizations.weight_norm(nn.Conv2d(8, 8, 3)), "n,8,h,w"),
        ("equilibrium", Equilibrium, "n,8"),
        ("moving memory", Memory, "n,8"),
        ("messages", Message, "v,8 2,e:int64"),
        ("spectral convolution", Spectral, "n,8,t"),
        ("flow", Coupling, "n,8"),
        ("FractionalMaxPool2d", lambda: nn.FractionalMaxPool2d(2, output_size=5), "n,3,h,w"),
        ("AdaptiveLogSoftmax", lambda: nn.AdaptiveLogSoftmaxWithLoss(8, 30, [5, 15]), "n,8 n:int64"),
        ("Fold, Unfold", lambda: nn.Sequential(nn.Unfold(3, padding=1), nn.Fold((16, 16), 3, padding=1)), "n,4,16,16"),
        ("PixelShuffle", lambda: nn.Sequential(nn.Conv2d(3, 12, 3, padding=1), nn.PixelShuffle(2)), "n,3,h,w"),
        ("MultiheadAttention", lambda: Attending(), "n,s,8"),
        ("decoder layer", lambda: nn.TransformerDecoderLayer(8, 2, 16, batch_first=True), "n,s,8 n,t,8"),
        ("two ways, two layers", lambda: nn.LSTM(8, 16, 2, bidirectional=True, batch_first=True), "n,s,8"),
        ("projected LSTM", lambda: nn.LSTM(8, 16, proj_size=4), "s,n,8"),
        ("lazy", Lazy, "n,8"),
        ("scripted", lambda: torch.jit.script(nn.Sequential(nn.Linear(8, 8), nn.ReLU())), "n,8"),
        ("exported", lambda: torch.export.export(nn.Linear(8, 8), (torch.zeros(4, 8),)).module(), "4,8"),
        ("fx", lambda: torch.fx.symbolic_trace(nn.Sequential(nn.Linear(8, 8), nn.GELU())), "n,8"),
    ):
        without = name in ("FractionalMaxPool2d", "Fold, Unfold")  # parameters
        runs = name not in ("scripted", "exported")  # after eval() and requires_grad_()
        yield Case("modules", name, build, inputs, trains=not without, runs=runs)
    functions: dict[str, Callable[[torch.Tensor], Any]] = {
        "complex product": lambda x: torch.view_as_real(torch.polar(x.exp(), x) @ torch.polar(x, x).mH),
        "fft2, shifted": lambda x: torch.fft.ifft2(torch.fft.fftshift(torch.fft.fft2(x))).real,
        "Householder": lambda x: torch.linalg.householder_product(x.T @ x, x[0]),
        "solve": lambda x: torch.linalg.solve(x.T @ x + torch.eye(8), x.T),
        "eigenvalues": lambda x: torch.linalg.eigh(x.T @ x)[0],
        "searchsorted": lambda x: x[:, torch.searchsorted(torch.arange(8.0), x[0]).clamp(0, 7)],
        "masked_scatter": lambda x: x.masked_scatter(x > 0, x.flip(0)),
        "index_put": lambda x: x.index_put((x.argmax(0),), x[:1].expand(8, 8), accumulate=True),
        "segment sums": lambda x: torch.zeros(4, 8).index_reduce_(0, x[:, 0].long() % 4, x, "mean"),
        "gumbel": lambda x: f.gumbel_softmax(x, hard=True) @ x.T,
        "straight through": lambda x: x + (x.round() - x).detach(),
        "interpolated": lambda x: f.interpolate(x[None, None], scale_factor=2, mode="bicubic", antialias=True),
        "tensordot": lambda x: torch.tensordot(x.view(-1, 2, 4), x.view(-1, 2, 4), dims=([1, 2], [1, 2])),
        "cumulative logs": lambda x: x.logcumsumexp(0) - x.cummax(0)[0],
        "median, quantile": lambda x: x.median(0)[0] + x.quantile(0.3, dim=0),
        "take_along_dim": lambda x: x.take_along_dim(x.argsort(1), 1).diff(dim=0),
        "triangles": lambda x: torch.block_diag(x.T @ x, x.T @ x).tril(),
        "windows": lambda x: f.pad(x[None], (0, 0, 2, 2), mode="reflect").unfold(1, 5, 1).mean(-1),
        "losses": lambda x: f.triplet_margin_loss(x, x.flip(0), x.roll(1, 0)) + f.kl_div(x, x.softmax(-1)),
        "Kronecker": lambda x: torch.kron(x, torch.eye(2)),
        "coordinates": lambda x: x + torch.linspace(0, x.shape[0] - 1, x.shape[0])[:, None],
        "sampled by a grid": lambda x: f.grid_sample(
            x[None, None], f.affine_grid(torch.eye(2, 3)[None], [1, 1, *x.shape], False), "bicubic", align_corners=False
        ),
        "padded windows": lambda x: f.pad(x, (0, 0, 0, -x.shape[0] % 4)).view(-1, 4, 8).softmax(1),
        "experts of no tokens": lambda x: x[: x.shape[0] // 8].view(-1, 2, 4).mT @ x[: x.shape[0] // 8].view(-1, 2, 4),
    }
    for name, function in functions.items():
        yield Case("functions", name, lambda function=function: Odd(function), "n,8", sizes={"n": 6})


class Attending(nn.Module):
    """Attention that returns its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.MultiheadAttention(8, 2, batch_first=True, add_bias_kv=True)

    def forward(self, x: torch.Tensor) -> Any:
        return self.layer(x, x, x, average_attn_weights=False)


class Lazy(nn.Module):
    """A layer made in the first call."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.heads = nn.Linear(8, 8), nn.ModuleDict()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if "new" not in self.heads:
            self.heads["new"] = nn.Linear(8, 4)
        return self.heads["new"](self.layer(x))


if __name__ == "__main__":
    main((of_timm, of_transformers, by_hand))
