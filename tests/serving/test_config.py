"""Decoders of families' config.json, against the models that transformers makes of them."""

import json
import re
from typing import Any

import pytest
import torch

import rooflinekit as rk
from rooflinekit.errors import InputError
from rooflinekit.tracing.targets import declare_torchvision_operators

LLAMA = {"num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 99, "intermediate_size": 96}


@pytest.mark.parametrize(
    "family",
    ["bloom", "falcon", "gemma2", "glm4_moe", "gpt_bigcode", "gpt_neox", "granitemoeshared", "mpt", "phi", "qwen2_moe",
     "starcoder2", "xglm"],
)  # fmt: skip
def test_parameters_are_those_of_the_model(family: str) -> None:
    declare_torchvision_operators()
    transformers = pytest.importorskip("transformers")
    config = transformers.AutoConfig.for_model(family)
    config.num_hidden_layers = 3
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:3]
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    decoder = rk.Decoder.from_config(json.loads(json.dumps(config.to_dict(), default=str)))
    # gains, biases and learned positions are left out
    assert decoder.parameters == pytest.approx(sum(p.numel() for p in model.parameters()), rel=0.02)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"model_type": "zamba2"}, "config: model_type 'zamba2': a family whose layers are not known here"),
        ({"model_type": "lama"}, "are not known here; did you mean 'llama' or"),
        ({"layer_types": ["conv", "full_attention"]}, "config: layer_types: the model has layers of 'conv'"),
        ({"mamba_d_state": 16}, "config: mamba_d_state: the model has state-space layers"),
        ({"interleave_moe_layer_step": 2}, "config: interleave_moe_layer_step: 2: the model has layers with experts"),
        ({"word_embed_proj_dim": 32}, "config: word_embed_proj_dim: the embedding is of another width"),
    ],
)
def test_an_unknown_part_is_refused_by_name(more: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        rk.Decoder.from_config(LLAMA | more)


def test_windows_of_families_that_do_not_list_their_layers() -> None:
    given = LLAMA | {"sliding_window": 16}
    assert rk.Decoder.from_config(given | {"model_type": "mistral"}).full_layers == 0
    assert rk.Decoder.from_config(given | {"model_type": "gemma2"}).full_layers == 2
    assert rk.Decoder.from_config(given | {"model_type": "gemma3_text", "sliding_window_pattern": 4}).full_layers == 1


def test_layers_without_experts_before_those_with_them() -> None:
    moe = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_shared_experts": 1}
    decoder = rk.Decoder.from_config(LLAMA | moe | {"model_type": "glm4_moe", "first_k_dense_replace": 1})
    assert (decoder.dense_layers, decoder.dense_ffn, decoder.shared_ffn, decoder.ffn) == (1, 96, 32, 32)
    graph = decoder.decode()
    # attention 4 · 64², one network of 3 · 64 · 96, three of 9 experts of 3 · 64 · 32 and a router of 64 · 8; gains of
    # 64: two a layer and one; embedding and output
    by_hand = 4 * 4 * 64**2 + 3 * 64 * 96 + 3 * (9 * 3 * 64 * 32 + 64 * 8) + 9 * 64 + 2 * 99 * 64
    assert graph.parameters == by_hand
    assert decoder.parameters == by_hand - 9 * 64
    with pytest.raises(InputError, match="dense_layers: expected some of the layers that see everything"):
        decoder.with_changes(dense_layers=5)
