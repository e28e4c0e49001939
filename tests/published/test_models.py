"""Language models by name: their numbers of parameters, which owners publish, against those of the dimensions here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import rooflinekit as rk
from rooflinekit.errors import InputError, TargetError
from rooflinekit.published.models import config_of, published, published_names
from rooflinekit.tracing.targets import load_target


@pytest.mark.parametrize("name", published_names())
def test_parameters_are_the_published_number(name: str) -> None:
    _, config = config_of(name, InputError)
    assert config["_source"].startswith("huggingface.co/")
    # Gains and biases are left out, and owners round: GLM-4.5 counts a layer that is used in training alone.
    assert rk.Decoder.from_config(name).parameters / 1e9 == pytest.approx(config["_parameters"], rel=0.01)


@pytest.mark.parametrize("name", ["llama-3.2-1b", "gpt-oss-20b", "deepseek-v2-lite", "gemma-3-1b", "opt-6.7b"])
def test_transformers_makes_the_same_model_of_it(name: str) -> None:
    pytest.importorskip("transformers")
    model = load_target(name).model
    assert isinstance(model, torch.nn.Module)
    number = sum(parameter.numel() for parameter in model.parameters())
    assert rk.Decoder.from_config(name).parameters == pytest.approx(number, rel=0.002)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("Llama-3.1-70B-Instruct", "llama-3.1-70b"),
        ("meta-llama/Meta-Llama-3-8B", "llama-3-8b"),
        ("llama3.1-8b", "llama-3.1-8b"),
        ("Qwen/Qwen2.5-7B-Instruct", "qwen2.5-7b"),
        ("gemma-2-9b-it", "gemma-2-9b"),
        ("gpt_oss_20b", "gpt-oss-20b"),
    ],
)
def test_names_as_people_type_them(typed: str, meant: str) -> None:
    found = published(typed)
    assert found is not None
    assert found[0] == meant


def test_no_two_names_are_spelled_alike() -> None:
    assert all(found is not None and found[0] == name for name in published_names() for found in [published(name)])


def test_windows_of_every_second_layer() -> None:
    assert rk.Decoder.from_config("gpt-oss-20b").full_layers == 12  # of 24
    assert rk.Decoder.from_config("mistral-7b").window is None  # as of version 0.2


def test_a_name_that_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no language model is built in by this name; did you mean 'llama-3.1-70b'"):
        rk.Decoder.from_config("llama-3.1-71b")
    with pytest.raises(TargetError, match=r"^target '.*': did you mean 'llama-3.1-8b'"):
        rk.trace("llama-3.1-8bb", rk.Input(1, 8, dtype="int64"))
    monkeypatch.chdir(tmp_path)
    Path("gpt2").write_text(json.dumps({"n_layer": 1, "n_embd": 8, "n_head": 1, "vocab_size": 9}), encoding="utf-8")
    assert rk.Decoder.from_config("gpt2").layers == 1  # a file goes before a name


def test_a_model_of_the_users_own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(InputError, match=r"hf:some/model: HuggingFace's cache on this machine has no config.json"):
        rk.Decoder.from_config("hf:some/model")
    folder = tmp_path / "models--some--model"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("abc", encoding="utf-8")
    (folder / "snapshots" / "abc").mkdir(parents=True)
    _, config = config_of("gpt2", InputError)
    (folder / "snapshots" / "abc" / "config.json").write_text(json.dumps(config), encoding="utf-8")
    decoder = rk.Decoder.from_config("hf:some/model")
    assert (decoder.name, decoder.layers) == ("model", 12)


@pytest.mark.parametrize(
    ("told", "engine", "drawn"),
    [
        ({"top_p": 0.95, "top_k": 20}, rk.Engine(), True),
        ({"top_p": 0.95}, rk.Engine.of("vllm:0.12"), True),
        ({"top_p": 0.95}, rk.Engine.of("vllm:0.12", sampling="greedy"), False),
        ({"top_p": 0.95}, rk.Engine.of("sglang"), False),  # FlashInfer draws without a sort
        ({"top_p": 0.95, "temperature": 0}, rk.Engine(), False),
        ({"top_p": 1.0, "top_k": 20}, rk.Engine(), False),
        ({}, rk.Engine(), False),
    ],
)
def test_the_file_beside_says_how_tokens_are_drawn(
    told: dict[str, float], engine: rk.Engine, drawn: bool, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config_of("llama-3.2-1b", InputError)[1]), encoding="utf-8")
    (tmp_path / "generation_config.json").write_text(json.dumps(told), encoding="utf-8")
    decoder = rk.Decoder.from_config(tmp_path)
    served = rk.serve(decoder, "nvidia-l40s", batch=4, input=64, output=8, engine=engine)
    sorts = [one for one in served.decode.timings if one.kernel.kind == "serving.sort_rows"]
    assert bool(sorts) == drawn == any("generation_config.json" in note for note in served.notes())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"top_p": 2}', "generation_config: top_p: expected a share above 0, up to 1"),
        ("[]", "expected a gener"),
    ],
)
def test_a_file_beside_that_says_nothing(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config_of("llama-3.2-1b", InputError)[1]), encoding="utf-8")
    (tmp_path / "generation_config.json").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=message):
        rk.Decoder.from_config(tmp_path)


def test_inputs_that_need_not_be_said() -> None:
    own = rk.trace("timm:resnet18", rk.Input("batch", 3, 224, 224)).at(batch=2)
    assert rk.trace("timm:resnet18").at(batch=2).matrix_flop == own.matrix_flop
    assert rk.predict("timm:resnet18", "nvidia-l4", batch=2).graph.matrix_flop == own.matrix_flop
    assert rk.predict("gpt2", gpu="nvidia-l4", batch=1, seq=8).graph.matrix_flop > 0
    table = rk.sweep({"small": "timm:resnet18"}, gpus=["nvidia-l4"], batch=[2])
    assert table["batch"].tolist() == [2]
