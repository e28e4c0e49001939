"""Decoders from config.json, their parameters and the bytes of their formats."""

import json
import re
from pathlib import Path

import pytest

import rooflinekit as rk
from rooflinekit.decoder.formats import WEIGHT_FORMATS
from rooflinekit.errors import InputError
from rooflinekit.serving.engine import weight_bytes_of


@pytest.mark.parametrize(
    ("name", "published"),
    [("llama-3.1-8b", 8_030_261_248), ("llama-3.1-70b", 70_553_706_496), ("qwen3-32b", 32_762_123_264)],
)
def test_parameters_are_the_published_ones(name: str, published: int) -> None:
    decoder = rk.Decoder.from_config(name)
    assert decoder.decode().parameters == published
    # the property leaves out gains
    assert published * 0.999 < decoder.parameters <= published


def test_the_cache_of_llama_3_1_8b() -> None:
    decoder = rk.Decoder.from_config("llama-3.1-8b")
    assert decoder.kv_bytes_per_token() == 2 * 32 * 8 * 128 * 2 == 131_072
    assert decoder.kv_bytes_per_token("fp8") == 65_536
    assert decoder.kv_bytes_per_token(tp=4) == 131_072 // 4
    assert decoder.kv_bytes_per_token(tp=16) == 131_072 // 8  # a copy of one head on every two GPUs
    assert decoder.kv_bytes(100) == 13_107_200


def test_a_window_bounds_the_cache() -> None:
    decoder = rk.Decoder(
        layers=4, hidden=64, heads=4, kv_heads=2, head_dim=16, ffn=128, vocab=100, window=10, windowed_layers=3
    )
    a_token = 2 * 2 * 16 * 2  # keys and values of two heads of 16, 2 bytes each
    assert decoder.kv_bytes(8) == 4 * 8 * a_token
    assert decoder.kv_bytes(50) == (1 * 50 + 3 * 10) * a_token


#: Bits of a number, and bytes of the scales of an [n, k] matrix.
STORED = {
    "bf16": (16, lambda n, k: 0),
    "fp16": (16, lambda n, k: 0),
    "fp8": (8, lambda n, k: 4),  # one for the matrix
    "fp8-dynamic": (8, lambda n, k: 4),
    "int8-dynamic": (8, lambda n, k: n * 4),  # one a row
    "int8": (8, lambda n, k: n * 2),
    "int4": (4, lambda n, k: n * (k // 128) * 2),  # one for 128 numbers of a row
    "fp8-block": (8, lambda n, k: (n // 128) * (k // 128) * 4),  # one for 128 × 128 numbers
    "nvfp4": (4, lambda n, k: n * (k // 16)),  # one of a byte for 16 numbers of a row
    "mxfp4": (4, lambda n, k: n * (k // 32)),  # for 32
}


@pytest.mark.parametrize("weights", WEIGHT_FORMATS)
def test_bytes_of_a_decoders_weights(weights: str) -> None:
    bits, scales = STORED[weights]
    decoder = rk.Decoder(layers=2, hidden=128, heads=4, kv_heads=2, head_dim=32, ffn=256, vocab=1000)
    outside = 2 * 1000 * 128 * 2 + 5 * 128 * 2  # embedding and output in 16 bits, five gains
    shapes = [(256, 128), (128, 128), (512, 128), (128, 256)]
    layer = sum(n * k * bits // 8 + scales(n, k) for n, k in shapes)
    assert weight_bytes_of(decoder.decode(weights=weights)) == outside + 2 * layer


_LLAMA = {
    "num_hidden_layers": 1, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 99, "intermediate_size": 96
}  # fmt: skip


@pytest.mark.parametrize(
    ("scheme", "weights"),
    [
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, "int4"),
        ({"quant_method": "gptq", "bits": 8}, "int8"),
        ({"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}, "fp8-block"),
        ({"quant_method": "fp8", "activation_scheme": "static"}, "fp8"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4"),
        ({"quant_method": "mxfp4"}, "mxfp4"),
        ({"quant_method": "compressed-tensors", "config_groups": {"group_0": {
            "weights": {"num_bits": 4, "type": "int"}, "input_activations": None}}}, "int4"),
        ({"quant_method": "compressed-tensors", "config_groups": {"group_0": {
            "weights": {"num_bits": 8, "type": "int"}, "input_activations": {"num_bits": 8, "dynamic": True}}}},
         "int8-dynamic"),
    ],
)  # fmt: skip
def test_weights_as_a_config_says(scheme: dict[str, object], weights: str) -> None:
    decoder = rk.Decoder.from_config(_LLAMA | {"quantization_config": scheme})
    assert decoder.weights == weights
    assert weight_bytes_of(decoder.decode()) == weight_bytes_of(decoder.decode(weights=weights))


def test_schemes_of_quantization_that_have_no_format() -> None:
    with pytest.raises(InputError, match="no time of bitsandbytes is known; state another one with weights="):
        rk.Decoder.from_config(_LLAMA | {"quantization_config": {"quant_method": "bitsandbytes"}})
    stated = rk.Decoder.from_config(_LLAMA | {"quantization_config": {"quant_method": "bitsandbytes"}}, weights="int4")
    assert stated.weights == "int4"
    with pytest.raises(InputError, match="gptq of 3 bits: expected 4 or 8"):
        rk.Decoder.from_config(_LLAMA | {"quantization_config": {"quant_method": "gptq", "bits": 3}})


def test_products_of_four_bits_multiply_all_numbers_of_a_row() -> None:
    decoder = rk.Decoder(layers=1, hidden=64, heads=4, kv_heads=4, head_dim=16, ffn=128, vocab=32)
    plain, packed = (decoder.prefill(weights=weights).at(batch=1, seq=8) for weights in ("bf16", "nvfp4"))
    assert packed.matrix_flop == plain.matrix_flop
    # experts alone: a dense network's matrices too, those of attention not where there are experts
    mixed = decoder.with_changes(experts=2, experts_per_token=1)
    kinds = [priced.op.kind for priced in mixed.decode(weights="mxfp4").priced]
    assert kinds.count("serving.weight_only_mm") == 0
    assert kinds.count("serving.grouped_mm") == 2


def test_families_that_name_numbers_otherwise() -> None:
    gpt2 = rk.Decoder.from_config({"n_layer": 12, "n_embd": 768, "n_head": 12, "vocab_size": 50257})
    assert (gpt2.ffn, gpt2.kv_heads, gpt2.head_dim, gpt2.gated, gpt2.tied) == (3072, 12, 64, False, True)
    llama = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 99}
    moe = rk.Decoder.from_config(
        llama
        | {"intermediate_size": 1, "moe_intermediate_size": 32, "num_experts": 8, "num_experts_per_tok": 2}
        | {"sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"]}
    )
    assert (moe.ffn, moe.experts, moe.experts_per_token, moe.window, moe.full_layers) == (32, 8, 2, 16, 1)
    dense = rk.Decoder.from_config(llama | {"intermediate_size": 96, "sliding_window": 16, "use_sliding_window": False})
    assert (dense.window, dense.full_layers, dense.ffn) == (None, 2, 96)
    assert rk.Decoder.from_config(llama | {"intermediate_size": 96}, kv_heads=2).kv_heads == 2


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"hidden_size": 64}, "config: num_hidden_layers or n_layer or num_layers or n_layers is missing"),
        ({"state_size": 16}, "config: state_size: the model has state-space layers, which a Decoder does not"),
    ],
)
def test_configs_of_something_else(config: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        rk.Decoder.from_config(config)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.json: cannot be read: No such file"):
        rk.Decoder.from_config(tmp_path / "none.json")
    file = tmp_path / "config.json"
    file.write_text("{", encoding="utf-8")
    with pytest.raises(InputError, match="is no JSON"):
        rk.Decoder.from_config(file)
    file.write_text(json.dumps([1]), encoding="utf-8")
    with pytest.raises(InputError, match="an object; got list"):
        rk.Decoder.from_config(file)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"layers": 0}, "decoder: layers: expected an integer of 1 or more; got 0"),
        ({"kv_heads": 3}, "decoder: heads 4 is no multiple of kv_heads 3"),
        ({"experts": 4}, "decoder: experts_per_token: expected 1 to experts (4)"),
        ({"layer": 3}, "got 'layer'; did you mean 'layers' or 'dense_layers'?"),
    ],
)
def test_numbers_that_make_no_decoder(changed: dict[str, int], message: str) -> None:
    decoder = rk.Decoder(layers=1, hidden=8, heads=4, kv_heads=2, head_dim=2, ffn=8, vocab=8)
    with pytest.raises(InputError, match=re.escape(message)):
        decoder.with_changes(**changed)


def test_layers_that_cannot_be_cut() -> None:
    decoder = rk.Decoder(name="d", layers=1, hidden=8, heads=4, kv_heads=2, head_dim=2, ffn=6, vocab=8)
    with pytest.raises(InputError, match="tp 4: d cannot be cut so: expected a divisor of its heads"):
        decoder.decode(tp=4)
    with pytest.raises(InputError, match=r"weights: expected bf16, fp16, fp8, .*, mxfp4; got 'int5'; did you"):
        decoder.decode(weights="int5")
