"""A language model's config.json → the numbers of a Decoder; a part that these do not describe is refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rooflinekit.errors import InputError, nearest, printable
from rooflinekit.ir.arguments import expect
from rooflinekit.ir.sizes import finite, shown

_MOST = 2**32  # of anything that a decoder has

#: What families of models call the same number.
_CALLED = {
    "layers": ("num_hidden_layers", "n_layer", "num_layers", "n_layers"),
    "hidden": ("hidden_size", "n_embd", "d_model"),
    "heads": ("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads"),
    "kv_heads": ("num_key_value_heads", "n_kv_heads", "num_kv_heads", "kv_n_heads"),
    "head_dim": ("head_dim",),
    "ffn": ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size"),
    "vocab": ("vocab_size",),
    "experts": ("num_local_experts", "num_experts", "n_routed_experts"),
    "experts_per_token": ("num_experts_per_tok", "experts_per_token", "num_experts_per_token"),
    "shared_ffn": ("shared_expert_intermediate_size", "shared_intermediate_size"),
}
#: Keys of parts that a Decoder does not have, whatever the family.
_OTHER = {
    "linear_num_key_heads": "linear attention",
    "ssm_cfg": "state-space layers",
    "state_size": "state-space layers",
    "mamba_d_state": "state-space layers",
    "lru_width": "recurrent layers",
    "is_encoder_decoder": "an encoder",
    "cross_attention_layers": "layers that attend to another input",
    "mlp_only_layers": "dense layers between those with experts",
    "index_topk": "attention to some tokens that an index chooses",
}
#: Keys that are harmless at one value: those of layers that are all alike.
_ALIKE = {"decoder_sparse_step": 1, "interleave_moe_layer_step": 1, "moe_layer_freq": 1, "moe_layer_interval": 1}
#: `model_type` of families whose layers a Decoder is: networks of three matrices, and of two. Held against the numbers
#: of parameters of transformers' own models (tests/decoder/test_config.py).
_GATED = frozenset((
    "baichuan", "cohere", "cohere2", "cwm", "deepseek_v2", "deepseek_v3", "dots1", "ernie4_5", "exaone4",
    "exaone_moe", "flex_olmo", "gemma", "gemma2", "gemma3", "gemma3_text", "glm", "glm4", "glm4_moe", "gpt_oss",
    "granite", "granitemoe", "granitemoeshared", "helium", "hyperclovax", "internlm2", "internlm3", "kimi_k2",
    "llama", "llava", "minimax_m2", "ministral3", "mistral", "mistral3", "mixtral", "olmo", "olmo2", "olmo3",
    "olmoe", "phi3", "phimoe", "qwen2", "qwen2_5_vl", "qwen2_5_vl_text", "qwen2_moe", "qwen2_vl", "qwen2_vl_text",
    "qwen3", "qwen3_moe", "qwen3_vl", "qwen3_vl_moe", "qwen3_vl_moe_text", "qwen3_vl_text", "seed_oss", "smollm3",
    "stablelm", "vaultgemma",
))  # fmt: skip
_UNGATED = frozenset((
    "apertus", "arcee", "biogpt", "bloom", "codegen", "falcon", "gpt-sw3", "gpt2", "gpt_bigcode", "gpt_neox",
    "gpt_neox_japanese", "gptj", "jais2", "mpt", "nanochat", "nemotron", "openai-gpt", "opt", "persimmon", "phi",
    "starcoder2", "xglm",
))  # fmt: skip
#: Families that normalize queries and keys without saying so in their config.json.
_QK_NORM = frozenset((
    "apertus", "exaone4", "flex_olmo", "gemma3", "gemma3_text", "nanochat", "olmo2", "olmo3", "olmoe", "qwen3",
    "qwen3_moe", "qwen3_vl_moe_text", "qwen3_vl_text",
))  # fmt: skip
#: Families with windows in all layers but each n-th, where config.json does not list its layers.
_EACH_NTH_FULL = {"cohere2": 4, "gemma2": 2, "gpt_oss": 2, "gemma3": 6, "gemma3_text": 6, "vaultgemma": 2}
#: Families that use the embedding as output matrix unless told otherwise.
_TIED = frozenset((
    "biogpt", "bloom", "cohere", "cohere2", "falcon", "gemma", "gemma2", "gemma3", "gemma3_text", "gpt-sw3",
    "gpt2", "gpt_bigcode", "mpt", "openai-gpt", "opt", "starcoder2", "vaultgemma", "xglm",
))  # fmt: skip
#: Families whose attention and network read the same numbers; others say so under a key, with what its absence means.
_PARALLEL = frozenset(("codegen", "cohere", "cohere2", "gptj", "phi"))
_PARALLEL_KEYS = {
    "falcon": ("parallel_attn", True), "gpt_neox": ("use_parallel_residual", True),
    "stablelm": ("use_parallel_residual", False),
}  # fmt: skip
#: Keys by which networks of two matrices are known where there is no `model_type`.
_TWO_MATRICES = ("n_inner", "n_embd", "ffn_dim")


def check_number(name: str, value: object, least: int) -> None:
    """Raises InputError for what is no integer of `least` or more."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InputError(f"decoder: {name}: expected an integer of {least} or more; got {shown(value)}")
    if value > _MOST:
        raise InputError(f"decoder: {name}: expected an integer of at most {_MOST:,}; got {shown(value)}")


def text_part(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """What is said of the language model inside one that also sees; {} where that is all there is."""
    inner = config.get("text_config") or {}
    if not isinstance(inner, Mapping):
        raise InputError(f"config: text_config: expected an object; got {shown(inner)}")
    return inner


def fields_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a Decoder that a config.json states.

    Raises InputError for a number that is missing, and for a family or part that these fields do not describe.
    """
    inner = text_part(config)
    nested = {k: v for name in ("attn_config", "ffn_config") if isinstance(config.get(name), Mapping)
              for k, v in config[name].items()}  # fmt: skip
    config = {**nested, **config, **inner}
    family = config.get("model_type")
    if family is not None and not isinstance(family, str):
        raise InputError(f"config: model_type: expected a word; got {shown(family)}")
    _refuse(config, family)
    found = _numbers(config)
    for name in ("layers", "hidden", "heads", "ffn", "vocab"):
        if name not in found:
            raise InputError(f"config: {' or '.join(_CALLED[name])} is missing: is it a language model's config.json?")
    two = any(key in config for key in _TWO_MATRICES) if family is None else family in _UNGATED
    key, missing = _PARALLEL_KEYS.get(family or "", ("", family in _PARALLEL))
    newer = family == "falcon" and bool(config.get("new_decoder_architecture"))
    return {
        **found,
        **_latent_of(config),
        **_dense_of(config, found),
        **_window_of(config, family, found["layers"]),
        "gated": not two,
        "tied": bool(config.get("tie_word_embeddings", "n_embd" in config or family in _TIED)),
        "qk_norm": bool(config.get("use_qk_norm", config.get("qk_layernorm", family in _QK_NORM))),
        "qk_norm_whole": config.get("qk_norm_type") == "per_layer",
        "parallel": newer or bool(config.get(key, missing)),
        **_style_of(config, two=two),
    }


def _style_of(config: Mapping[str, Any], *, two: bool) -> dict[str, Any]:
    """Normalization, biases and positions: those of MPT, of the GPT-2 family, or of Llama's."""
    if isinstance(config.get("attn_config"), Mapping):  # MPT
        positions = "alibi" if config.get("alibi") else "learned" if config.get("learned_pos_emb", True) else "none"
        return {"norm": "layer", "bias": not config.get("no_bias", False), "positions": positions}
    older = any(key in config for key in _TWO_MATRICES)
    biased = bool(config.get("attention_bias") and config.get("mlp_bias"))
    return {
        "norm": "layer" if two else "rms", "bias": older or biased, "positions": "learned" if older else "rotary",
    }  # fmt: skip


def _refuse(config: Mapping[str, Any], family: str | None) -> None:
    for key, what in _OTHER.items():
        if config.get(key):
            raise _not_described(f"{key}: the model has {what}")
    for key, plain in _ALIKE.items():
        if config.get(key, plain) != plain:
            raise _not_described(f"{key}: {shown(config[key])}: the model has layers with experts between others")
    known = _GATED | _UNGATED
    if family is not None and family not in known:
        name = printable(family)
        raise InputError(
            f"config: model_type {name!r}: a family whose layers are not known here{nearest(name, sorted(known))}; "
            "where they are those of another family, state its model_type, or the numbers by name: Decoder(layers=…)"
        )
    width = config.get("word_embed_proj_dim")
    if width is not None and width != config.get("hidden_size"):
        raise _not_described("word_embed_proj_dim: the embedding is of another width than the layers")


def _not_described(what: str) -> InputError:
    return InputError(f"config: {what}, which a Decoder does not describe")


def _numbers(config: Mapping[str, Any]) -> dict[str, int]:
    found = {field: next((config[k] for k in keys if config.get(k)), None) for field, keys in _CALLED.items()}
    for name, value in found.items():
        if value is not None:
            check_number(name, value, 1)
    one_key = config.get("multi_query") and not config.get("new_decoder_architecture")
    if found["heads"] and found["hidden"]:
        found["kv_heads"] = 1 if one_key else found["kv_heads"] or found["heads"]
        found["head_dim"] = max(1, found["head_dim"] or found["hidden"] // found["heads"])
        found["ffn"] = (config.get("moe_intermediate_size") if found["experts"] else None) or found["ffn"]
        found["ffn"] = found["ffn"] or _times_hidden(config, found["hidden"])
    shared = config.get("n_shared_experts") or config.get("num_shared_experts")
    if found["experts"] and shared and not found["shared_ffn"]:
        check_number("n_shared_experts", shared, 1)
        found["shared_ffn"] = shared * (found["ffn"] or 0)
    if found["experts"] == 1:
        found["experts"] = found["experts_per_token"] = None
    return {name: value for name, value in found.items() if value is not None}


def _times_hidden(config: Mapping[str, Any], hidden: int) -> int | None:
    """The width of a network that is stated as a multiple of the layers', 4 of it in the oldest families."""
    for key in ("expansion_ratio", "intermediate_multiple_size"):
        if config.get(key):
            check_number(key, config[key], 1)
            return int(config[key]) * hidden
    oldest = config.get("model_type") in ("bloom", "falcon", "mpt", "gpt_neox_japanese") or "n_embd" in config
    return 4 * hidden if oldest else None


def _latent_of(config: Mapping[str, Any]) -> dict[str, int]:
    if not config.get("kv_lora_rank"):
        return {}
    found = {key: config.get(key) for key in ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")}
    for key, value in found.items():
        check_number(key, value, 1)
    latent, plain, rope, values = (int(value) for value in found.values() if value is not None)
    query = config.get("q_lora_rank") or 0
    check_number("q_lora_rank", query, 0)
    return {"latent": latent, "query_latent": query, "rope_dim": rope, "value_dim": values, "head_dim": plain + rope}


def _dense_of(config: Mapping[str, Any], found: Mapping[str, int]) -> dict[str, int]:
    dense = config.get("first_k_dense_replace")
    if not dense or "experts" not in found:
        return {}
    check_number("first_k_dense_replace", dense, 1)
    wide = config.get("intermediate_size")
    check_number("intermediate_size", wide, 1)
    assert isinstance(wide, int)
    return {"dense_layers": min(int(dense), found["layers"]), "dense_ffn": wide}


def _window_of(config: Mapping[str, Any], family: str | None, layers: int) -> dict[str, Any]:
    kinds = config.get("layer_types")
    if kinds is not None and not isinstance(kinds, list):
        raise InputError(f"config: layer_types: expected a list of words; got {shown(kinds)}")
    for kind in kinds or ():
        if kind not in ("full_attention", "sliding_attention", "attention"):
            raise _not_described(f"layer_types: the model has layers of {printable(str(kind))!r}")
    window = config.get("sliding_window")
    if not window or config.get("use_sliding_window") is False:
        return {}
    if kinds is not None:
        windowed = sum(kind == "sliding_attention" for kind in kinds)
        return {"window": window, "windowed_layers": windowed} if windowed else {}
    if config.get("sliding_window_pattern"):
        check_number("sliding_window_pattern", config["sliding_window_pattern"], 1)
    nth = config.get("sliding_window_pattern") or _EACH_NTH_FULL.get(family or "")
    return {"window": window, "windowed_layers": layers - layers // nth} if nth else {"window": window}


def published_weights(config: Mapping[str, Any]) -> str:
    """The name of the format that a model's matrices are published in: "bf16" where nothing is said of quantization.

    Known are what GPTQ, AWQ, compressed-tensors, ModelOpt, FP8 (of transformers and FBGEMM) and MXFP4 write. Raises
    InputError for another method, and for bits that no format has.
    """
    config = {**config, **text_part(config)}
    found = config.get("quantization_config") or config.get("compression_config")
    if not found:
        return "bf16"
    if not isinstance(found, Mapping):
        raise InputError(f"config: quantization_config: expected an object; got {shown(found)}")
    method = str(found.get("quant_method", "")).lower()
    if method in ("gptq", "awq", "auto-round", "auto_round", "intel/auto-round", "gptq_marlin", "awq_marlin"):
        return _weight_only(found.get("bits", found.get("w_bit", 4)), method)
    if method == "fp8":
        return _eight_bits(found.get("weight_block_size"), dynamic=found.get("activation_scheme") != "static")
    if method == "fbgemm_fp8":
        return "fp8-dynamic"
    if method == "mxfp4":
        return "mxfp4"
    if method in ("compressed-tensors", "compressed_tensors"):
        return _compressed(found)
    if method == "modelopt" or "quant_algo" in found:
        return _modelopt(found)
    raise _unpriced(f"no time of {printable(method) or 'an unnamed method'} is known")


def _unpriced(why: str) -> InputError:
    return InputError(
        f"config: quantization_config: {why}; state another one with weights= (--weights), such as int4, for a "
        "prediction of that"
    )


def _weight_only(bits: object, method: str) -> str:
    if bits not in (4, 8):
        raise _unpriced(f"{printable(method)} of {shown(bits)} bits: expected 4 or 8")
    return f"int{bits}"


def _eight_bits(block: object, *, dynamic: bool) -> str:
    if not block:
        return "fp8-dynamic" if dynamic else "fp8"
    if block != [128, 128]:
        raise _unpriced(f"weight_block_size: expected [128, 128]; got {shown(block)}")
    return "fp8-block"


def _compressed(found: Mapping[str, Any]) -> str:
    groups = found.get("config_groups")
    group = next(iter(groups.values()), None) if isinstance(groups, Mapping) else None
    weights = group.get("weights") if isinstance(group, Mapping) else None
    if not isinstance(group, Mapping) or not isinstance(weights, Mapping):
        raise InputError(f"config: quantization_config: config_groups: expected one with weights; got {shown(groups)}")
    given, bits, kind = group.get("input_activations"), weights.get("num_bits"), weights.get("type", "int")
    if not isinstance(given, Mapping):
        if kind == "int":
            return _weight_only(bits, "compressed-tensors")
    elif (kind, bits, given.get("num_bits")) == ("float", 4, 4) and weights.get("group_size") == 16:
        return "nvfp4"
    elif (kind, bits, given.get("num_bits")) == ("int", 8, 8):
        return "int8-dynamic"
    elif (kind, bits, given.get("num_bits")) == ("float", 8, 8):
        return _eight_bits(weights.get("block_structure"), dynamic=bool(given.get("dynamic", False)))
    beside = "with activations in fewer than 16" if given else "alone"
    raise _unpriced(f"compressed-tensors: no time is known of {shown(kind)} weights of {shown(bits)} bits {beside}")


def _modelopt(found: Mapping[str, Any]) -> str:
    algorithm = str(found.get("quant_algo", "")).upper()
    known = {"FP8": "fp8", "NVFP4": "nvfp4", "W4A16_AWQ": "int4", "W8A16": "int8", "W4A16": "int4"}
    if algorithm not in known:
        raise _unpriced(f"quant_algo: expected one of {', '.join(known)}; got {shown(found.get('quant_algo'))}")
    return known[algorithm]


def published_sampling(config: Mapping[str, Any]) -> str:
    """Whether the logits are "sorted" where nothing else is asked: where the model's generation_config.json has a top_p
    below 1 and a temperature above 0; otherwise "greedy".

    Raises InputError for a top_p that is no number.
    """
    told = config.get("_generation", {})
    top_p = told.get("top_p")
    fits = top_p is None or (finite(top_p) and 0 < top_p <= 1)
    expect(fits, "generation_config: top_p", "a share above 0, up to 1", top_p)
    return "sorted" if top_p is not None and top_p < 1 and told.get("temperature") != 0 else "greedy"
