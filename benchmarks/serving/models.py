"""Decoders that measured tables name, by the numbers of their published config.json."""

from __future__ import annotations

from typing import Any

import rooflinekit as rk


def _decoder(name: str, layers: int, hidden: int, heads: int, kv_heads: int, ffn: int, vocab: int, **more: Any
             ) -> rk.Decoder:  # fmt: skip
    return rk.Decoder(**{
        "name": name, "layers": layers, "hidden": hidden, "heads": heads, "kv_heads": kv_heads, "ffn": ffn,
        "vocab": vocab, "head_dim": hidden // heads, **more,
    })  # fmt: skip


_EIGHT = {"experts": 8, "experts_per_token": 2}
_LLAMA_2_7B = _decoder("llama-2-7b", 32, 4096, 32, 32, 11008, 32000)
_LLAMA_2_70B = _decoder("llama-2-70b", 80, 8192, 64, 8, 28672, 32000)
_LLAMA_3_8B = _decoder("llama-3.1-8b", 32, 4096, 32, 8, 14336, 128256)
_LLAMA_3_70B = _decoder("llama-3-70b", 80, 8192, 64, 8, 28672, 128256)
_MISTRAL_7B = _decoder("mistral-7b", 32, 4096, 32, 8, 14336, 32000, window=4096)
_MIXTRAL = _decoder("mixtral-8x7b", 32, 4096, 32, 8, 14336, 32000, **_EIGHT)
_QWEN_235B = _decoder(
    "qwen3-235b-a22b", 94, 4096, 64, 4, 1536, 151936, head_dim=128, qk_norm=True, experts=128, experts_per_token=8
)

DECODERS = {
    "01-ai/Yi-34B": _decoder("yi-34b", 60, 7168, 56, 8, 20480, 64000),
    "Falcon 180B": _decoder("falcon-180b", 80, 14848, 232, 8, 59392, 65024, gated=False, parallel=True),
    "GPT-J 6B": _decoder("gpt-j-6b", 28, 4096, 16, 16, 16384, 50400, gated=False, parallel=True),
    "LLaMA 70B": _LLAMA_2_70B,
    "LLaMA 7B": _LLAMA_2_7B,
    "Llama-3.1-8B": _LLAMA_3_8B,
    "Mistral 7B": _MISTRAL_7B,
    "Mixtral 8x7B": _MIXTRAL,
    "Qwen/Qwen2-72B": _decoder("qwen2-72b", 80, 8192, 64, 8, 29568, 152064),
    "Qwen/Qwen2-7B": _decoder("qwen2-7b", 28, 3584, 28, 4, 18944, 152064),
    "Qwen/Qwen2.5-7B-Instruct": _decoder("qwen2.5-7b", 28, 3584, 28, 4, 18944, 152064),
    "Qwen/Qwen3-8B": _decoder("qwen3-8b", 36, 4096, 32, 8, 12288, 151936, qk_norm=True),
    "Qwen/Qwen3-32B": _decoder("qwen3-32b", 64, 5120, 64, 8, 25600, 151936, head_dim=128, qk_norm=True),
    "Qwen/Qwen3-30B-A3B-Instruct-2507": _decoder(
        "qwen3-30b-a3b", 48, 2048, 32, 4, 768, 151936, head_dim=128, qk_norm=True, experts=128, experts_per_token=8
    ),
    "Qwen/Qwen3-235B-A22B-Instruct-2507": _QWEN_235B,
    "Qwen/Qwen3-235B-A22B-Instruct-2507-FP8": _QWEN_235B,
    "Qwen/Qwen3-14B": _decoder("qwen3-14b", 40, 5120, 40, 8, 17408, 151936, qk_norm=True),
    "bloom-176b": _decoder("bloom-176b", 70, 14336, 112, 112, 57344, 250880, gated=False, tied=True),
    "codellama/CodeLlama-34b-Instruct-hf": _decoder("codellama-34b", 48, 8192, 64, 8, 22016, 32000),
    "llama2-70b": _LLAMA_2_70B,
    "meta-llama/Llama-2-70b-hf": _LLAMA_2_70B,
    "meta-llama/Llama-2-7b-hf": _LLAMA_2_7B,
    "meta-llama/Llama-3.1-405B-Instruct-FP8": _decoder("llama-3.1-405b", 126, 16384, 128, 8, 53248, 128256),
    "meta-llama/Llama-3.1-70B-Instruct": _LLAMA_3_70B,
    "meta-llama/Llama-3.3-70B-Instruct": _LLAMA_3_70B,
    "meta-llama/Llama-3.1-8B-Instruct": _LLAMA_3_8B,
    "meta-llama/Meta-Llama-3-70B": _LLAMA_3_70B,
    "meta-llama/Meta-Llama-3-8B": _LLAMA_3_8B,
    "mistralai/Mistral-7B-v0.1": _MISTRAL_7B,
    "mistralai/Mixtral-8x22B-Instruct-v0.1": _decoder("mixtral-8x22b", 56, 6144, 48, 8, 16384, 32768, **_EIGHT),
    "mistralai/Mixtral-8x7B-v0.1": _MIXTRAL,
}
