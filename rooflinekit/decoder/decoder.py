"""A decoder-only language model in a dozen numbers, as a HuggingFace config.json states them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from rooflinekit.decoder.config import check_number, fields_of, published_sampling, published_weights
from rooflinekit.decoder.formats import KV_FORMATS, WEIGHT_FORMATS, Adapters, Options, check_format
from rooflinekit.errors import InputError, check_word
from rooflinekit.ir.arguments import checked, expect
from rooflinekit.published.models import config_of

if TYPE_CHECKING:
    from rooflinekit.ir.graph import Graph


@checked
@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """A stack of equal layers: attention and a feed-forward network, each behind a normalization.

    `kv_heads` below `heads` is grouped-query attention. `gated` networks have three matrices, others two. With
    `experts` each token passes `experts_per_token` of them, each of width `ffn`, and a shared one of width `shared_ffn`
    where there is one; the first `dense_layers` have a network of width `dense_ffn` in their place. `window` limits
    attention to so many tokens in `windowed_layers` of the layers (None for all). `tied`: the embedding is also the
    matrix of the output. `qk_norm`: queries and keys are normalized, each head by itself, or all heads together with
    `qk_norm_whole`, so that GPUs sum their squares (MiniMax M2). `parallel`: attention and the network read the same
    normalized numbers, and their results are added together (GPT-J, Falcon). `latent`: multi-head latent attention
    (DeepSeek), whose cache holds `latent` + `rope_dim` numbers a token, on each of several GPUs. Training steps of
    decoders with `latent` or `dense_layers` are not described.

    What training asks for besides: `norm` is "rms" or "layer"; `bias`: products have one; `positions` are "rotary",
    "learned" (a table of `max_positions` rows), "alibi" (a bias of each head's scores) or "none".

    Raises InputError for numbers that make no decoder.
    """

    name: str = "decoder"
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    gated: bool = True
    experts: int = 0  # 0 for a dense network
    experts_per_token: int = 0
    shared_ffn: int = 0
    dense_layers: int = 0  # without experts, before those with them
    dense_ffn: int = 0
    window: int | None = None
    windowed_layers: int | None = None
    tied: bool = False
    qk_norm: bool = False
    qk_norm_whole: bool = False
    parallel: bool = False
    norm: str = "rms"
    bias: bool = False
    positions: str = "rotary"
    max_positions: int = 0  # 0 for as many as a sequence has
    latent: int = 0  # numbers of which keys and values of all heads are made
    query_latent: int = 0  # numbers of which queries are made; 0: of the layer's input
    rope_dim: int = 0  # of head_dim those that are rotated, for keys shared by all heads
    value_dim: int = 0  # of a head's values, where these differ from head_dim
    weights: str = "bf16"  # the format in which its matrices are published
    sampling: str = "greedy"  # how its generation_config.json chooses tokens: or "sorted", as of `Engine`

    def __post_init__(self) -> None:
        named = isinstance(self.name, str) and self.name.isprintable()
        expect(named, "decoder: name", "letters that can be printed", self.name)
        self._check_fields()
        if self.heads % self.kv_heads:
            raise InputError(f"decoder: heads {self.heads} is no multiple of kv_heads {self.kv_heads}")
        if (self.experts > 0) != (self.experts_per_token > 0) or self.experts_per_token > self.experts:
            raise InputError(
                f"decoder: experts_per_token: expected 1 to experts ({self.experts}), both 0 for a dense network; "
                f"got {self.experts_per_token}"
            )
        if self.parallel and self.experts:
            raise InputError("decoder: parallel: expected False for layers with experts; got True")
        if self.latent and (not 0 < self.rope_dim < self.head_dim or not self.value_dim or self.window):
            raise InputError(
                "decoder: latent: expected rope_dim below head_dim, value_dim, and no window; got rope_dim "
                f"{self.rope_dim}, head_dim {self.head_dim}, value_dim {self.value_dim}, window {self.window}"
            )
        if self.dense_layers > (self.full_layers if self.experts else 0) or (self.dense_layers > 0) != (
            self.dense_ffn > 0
        ):
            raise InputError(
                "decoder: dense_layers: expected fewer than layers, without a window, in a decoder with experts, "
                f"and dense_ffn; got {self.dense_layers} and {self.dense_ffn}"
            )

    def _check_fields(self) -> None:
        check_format("decoder: weights", self.weights, WEIGHT_FORMATS)
        known = {
            "norm": ("rms", "layer"), "positions": ("rotary", "learned", "alibi", "none"),
            "sampling": ("greedy", "sorted"),
        }  # fmt: skip
        for name, words in known.items():
            value = getattr(self, name)
            expect(value in words, f"decoder: {name}", " or ".join(words), value)
        for field in fields(self):
            value, default = getattr(self, field.name), field.default
            if isinstance(default, bool):
                expect(isinstance(value, bool), f"decoder: {field.name}", "True or False", value)
            elif default is MISSING or (default is None and value is not None):
                check_number(field.name, value, int(field.name != "windowed_layers"))
            elif default == 0:  # where a decoder has no such part
                check_number(field.name, value, 0)

    @classmethod
    def from_config(cls, config: str | Path | Mapping[str, Any], **changed: Any) -> Self:
        """From a HuggingFace config.json: its contents, its file or folder, or the name of a model.

        Names are those that are built in, such as "llama-3.1-70b", and "hf:owner/name" of a model whose config.json is
        in HuggingFace's cache on this machine. A generation_config.json beside a file says how tokens are chosen
        (`sampling`). `changed` fields take precedence.

        Raises InputError for a file that cannot be read, a number that is missing, and an architecture that these
        numbers do not describe.
        """
        name = "decoder"
        if not isinstance(config, Mapping):
            name, config = config_of(config, InputError)
        stated = {} if "weights" in changed else {"weights": published_weights(config)}
        chosen = {"sampling": published_sampling(config)}
        return cls(**{"name": name, **fields_of(config), **stated, **chosen, **_known(changed, cls)})

    def with_changes(self, **changed: Any) -> Decoder:
        """The same decoder with other numbers."""
        return replace(self, **_known(changed, type(self)))

    @property
    def full_layers(self) -> int:
        """Layers whose attention sees everything."""
        windowed = self.layers if self.windowed_layers is None else min(self.windowed_layers, self.layers)
        return self.layers if self.window is None else self.layers - windowed

    @property
    def layer_parameters(self) -> int:
        """Numbers in the matrices of a layer, all experts included; of one with experts where there are others."""
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        if self.latent:
            made = self.latent * (self.head_dim - self.rope_dim + self.value_dim) + self.value_dim * self.hidden
            queries = (self.query_latent or self.hidden) * self.head_dim
            low = self.hidden * (self.latent + self.rope_dim + self.query_latent)
            attention = low + self.heads * (queries + made)
        matrices = 3 if self.gated else 2
        network = matrices * self.hidden * (self.ffn * max(self.experts, 1) + self.shared_ffn)
        return attention + network + self.hidden * self.experts

    @property
    def parameters(self) -> int:
        """Numbers in all matrices and the embedding; gains and biases, less than a thousandth, are left out."""
        matrices = 3 if self.gated else 2
        dense = matrices * self.hidden * (self.dense_ffn - self.ffn * self.experts - self.shared_ffn)
        other = self.dense_layers * (dense - self.hidden * self.experts)
        return self.layers * self.layer_parameters + other + self.vocab * self.hidden * (1 if self.tied else 2)

    def kv_bytes_per_token(self, kv: str = "bf16", tp: int = 1) -> int:
        """Bytes that a token adds to the cache of one GPU: 2 · layers · kv_heads · head_dim · bytes of a number, with
        a latent layers · (latent + rope_dim) · bytes.

        Layers with a window hold no more than its tokens: that is counted where a number of tokens is given.
        """
        itemsize = check_format("kv", kv, KV_FORMATS).itemsize
        if self.latent:
            return self.layers * (self.latent + self.rope_dim) * itemsize
        return 2 * self.layers * self.kv_heads_on(tp) * self.head_dim * itemsize

    def kv_bytes(self, tokens: int, kv: str = "bf16", tp: int = 1) -> int:
        """Bytes of the cache of one sequence of so many tokens on one GPU; layers with a window hold its part."""
        a_layer = self.kv_bytes_per_token(kv, tp) // self.layers
        held = min(tokens, self.window or tokens)
        return a_layer * (self.full_layers * tokens + (self.layers - self.full_layers) * held)

    def kv_heads_on(self, tp: int) -> int:
        """Heads of keys on each of `tp` GPUs: where there are fewer heads than GPUs, each has a copy of one."""
        self.check_tp(tp)
        return max(1, self.kv_heads // tp)

    def check_tp(self, tp: int, ep: int = 1, dp: int = 1) -> None:
        """Raises InputError where layers do not cut into `tp` equal parts, or experts into `ep` over dp · tp GPUs."""
        for name, value in (("tp", tp), ("ep", ep), ("dp", dp)):
            check_number(name, value, 1)
        if dp > 1 and not self.experts:
            raise InputError(
                f"dp {dp}: {self.name} has no experts that groups could share; copies of it are independent: divide "
                "the requests among them"
            )
        if ep > 1 and (tp * dp % ep or not self.experts or self.experts % ep):
            raise InputError(
                f"ep {ep}: {self.name} cannot be cut so: expected a divisor of {'tp' if dp == 1 else 'tp · dp'} "
                f"({tp * dp}) and of its experts ({self.experts or 'none'})"
            )
        even = self.kv_heads % tp == 0 or tp % self.kv_heads == 0
        uneven = self.ffn * ep % (tp * dp) or self.shared_ffn % tp or self.dense_ffn % tp
        if self.heads % tp or uneven or not even:
            raise InputError(
                f"tp {tp}: {self.name} cannot be cut so: expected a divisor of its heads ({self.heads}) and of the "
                f"width of its network ({self.ffn}), that divides or is a multiple of its kv_heads ({self.kv_heads})"
            )

    def prefill(
        self, *, weights: str | None = None, kv: str = "bf16", tp: int = 1, ep: int = 1, dp: int = 1,
        adapters: Adapters | None = None,
    ) -> Graph:  # fmt: skip
        """The step that reads prompts: `batch` of them, `seq` tokens each, and gives the next token of each.

        weights: a format as of `serve`, by default the published one. kv: that of the cache: "bf16", "fp16" or "fp8".
        tp: GPUs that share each layer; the graph is one GPU's part. dp: groups of so many GPUs, each with sequences of
        its own, that share the experts; `batch` is one group's. ep: parts into which the experts are divided over all
        of these; tp · dp / ep GPUs share each. adapters: LoRA adapters that sequences use. Raises InputError for other
        words, or a tp, dp or ep that does not cut the layers evenly.
        """
        return self._step("prefill", weights, kv=kv, tp=tp, ep=ep, dp=dp, adapters=adapters)

    def decode(
        self, *, weights: str | None = None, kv: str = "bf16", tp: int = 1, ep: int = 1, dp: int = 1,
        adapters: Adapters | None = None, drafted: int = 0,
    ) -> Graph:  # fmt: skip
        """The step that gives one token to each of `batch` sequences of `context` tokens, the new one included.

        drafted: tokens of each sequence that are checked beside (speculative decoding). Other options as of `prefill`.
        """
        return self._step("decode", weights, kv=kv, tp=tp, ep=ep, dp=dp, adapters=adapters, drafted=drafted)

    def mixed(
        self, *, weights: str | None = None, kv: str = "bf16", tp: int = 1, ep: int = 1, dp: int = 1,
        adapters: Adapters | None = None, drafted: int = 0,
    ) -> Graph:  # fmt: skip
        """A step of both: `prompts` of `seq` tokens are read beside `batch` sequences of `context` tokens.

        All tokens pass the matrices together; attention treats the two apart. Options as of `decode`.
        """
        return self._step("mixed", weights, kv=kv, tp=tp, ep=ep, dp=dp, adapters=adapters, drafted=drafted)

    def _step(self, step: str, weights: str | None, *, drafted: int = 0, **options: Any) -> Graph:
        from rooflinekit.decoder.inference import step_graph

        check_number("drafted", drafted, 0)
        return step_graph(self, step, Options(weights=weights or self.weights, drafted=drafted, **options))


def _known(changed: Mapping[str, Any], decoder: type) -> Mapping[str, Any]:
    for name in changed:
        check_word("decoder: name of a number", name, [field.name for field in fields(decoder)])
    return changed
