"""A config.json's `quantization_config` → the format of the weights; a scheme that has none is refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rooflinekit.errors import InputError, printable
from rooflinekit.ir.sizes import shown
from rooflinekit.serving.config import text_part

_INSTEAD = "state another one with weights= (--weights), such as int4, for a prediction of that"


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
    raise InputError(f"config: quantization_config: no time of {printable(method) or 'an unnamed method'} is known; "
                     f"{_INSTEAD}")  # fmt: skip


def _weight_only(bits: object, method: str) -> str:
    if bits not in (4, 8):
        raise InputError(f"config: quantization_config: {printable(method)} of {shown(bits)} bits: expected 4 or 8; "
                         f"{_INSTEAD}")  # fmt: skip
    return f"int{bits}"


def _eight_bits(block: object, *, dynamic: bool) -> str:
    """FP8 as transformers writes it: in blocks of 128 × 128, or with a scale for all."""
    if not block:
        return "fp8-dynamic" if dynamic else "fp8"
    if block != [128, 128]:
        raise InputError(f"config: quantization_config: weight_block_size: expected [128, 128]; got {shown(block)}; "
                         f"{_INSTEAD}")  # fmt: skip
    return "fp8-block"


def _compressed(found: Mapping[str, Any]) -> str:
    """The first group of layers: what its weights and its activations are."""
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
    raise InputError(
        f"config: quantization_config: compressed-tensors: no time is known of {shown(kind)} weights of {shown(bits)} "
        f"bits {'with activations in fewer than 16' if given else 'alone'}; {_INSTEAD}"
    )


def _modelopt(found: Mapping[str, Any]) -> str:
    algorithm = str(found.get("quant_algo", "")).upper()
    known = {"FP8": "fp8", "NVFP4": "nvfp4", "W4A16_AWQ": "int4", "W8A16": "int8", "W4A16": "int4"}
    if algorithm not in known:
        raise InputError(f"config: quantization_config: quant_algo: expected one of {', '.join(known)}; got "
                         f"{shown(found.get('quant_algo'))}; {_INSTEAD}")  # fmt: skip
    return known[algorithm]
