"""What people hand over by any of its names is what is meant; what cannot be meant gets one sentence."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import rooflinekit as rk
from rooflinekit.api.keywords import usual_inputs
from rooflinekit.errors import DeviceNotFoundError, InputError, RooflinekitError, TargetError

NET = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
X = rk.Input("batch", 8)
ROOT = Path(__file__).parents[2]


def seconds(**given: Any) -> float:
    return rk.predict(NET, X, gpu="nvidia-l4", batch=64, **given).total_s


@pytest.mark.parametrize(
    ("name", "plain", "others"),
    [
        ("dtype", "bfloat16", ["bf16", "BF16", torch.bfloat16]),
        ("dtype", "float16", ["half", "fp16", torch.half]),
        ("autocast", "bfloat16", ["bf16", torch.bfloat16]),
        ("execution", "compiled", ["compile", "torch.compile", "inductor", "Compiled"]),
        ("execution", "cuda-graph", ["cuda_graph", "cuda-graphs", rk.Execution(backend="cuda_graph")]),
        ("execution", "aot-eager", ["aot_eager"]),
        ("mode", "training", ["train"]),
        ("mode", "inference", ["eval"]),
    ],
    ids=str,
)
def test_names_of_one_thing_are_the_same(name: str, plain: str, others: list[Any]) -> None:
    expected = seconds(**{name: plain})
    for other in others:
        assert seconds(**{name: other}) == expected
    if plain not in ("inference",):
        assert expected != seconds()  # the word is not passed over


def test_an_optimizer_and_a_loss_by_name() -> None:
    targets = [rk.Input("batch", 8)]
    given = {"mode": "training", "targets": targets}
    assert seconds(optimizer="adamw", loss="mse_loss", **given) == seconds(
        optimizer=torch.optim.AdamW, loss=nn.functional.mse_loss, **given
    )


def test_every_walk_takes_the_same_words() -> None:
    given: dict[str, Any] = {"autocast": torch.bfloat16, "execution": "compile", "batch": 64}
    expected = seconds(autocast="bfloat16", execution="compiled")
    assert rk.compare_gpus(NET, X, gpus=["nvidia-l4"], **given).table["total_s"].tolist() == [expected]
    assert rk.sweep(NET, X, gpus=["nvidia-l4"], **{**given, "batch": [64]})["total_s"].tolist() == [expected]
    found = rk.search(NET, X, gpus=["nvidia-l4"], **{**given, "batch": [64]})
    assert found.best["total_s"] == expected
    other = rk.predict(NET, X, gpu="nvidia-l4", batch=64)
    assert other.compare(autocast=torch.bfloat16, execution="compile")["total_s"].iloc[-1] == expected
    training: dict[str, Any] = {"batch": 64, "optimizer": "AdamW", "mode": "train"}
    fitted = [rk.fit_into(NET, X, gpu="l4", execution=word, **training) for word in ("compile", "compiled", "eager")]
    first, second, eager = (found.best.prediction.total_s for found in fitted)
    assert first == second != eager


@pytest.mark.parametrize(
    ("target", "shape"),
    [
        ("torchvision:inception_v3", ("batch", 3, 299, 299)),  # as its weights were trained
        ("torchvision:fasterrcnn_resnet50_fpn", None),  # a list of images of any size
        ("transformers:BertModel", ("batch", "seq")),
        ("transformers:ViTModel", ("batch", 3, 224, 224)),  # ViTConfig's defaults
        ("transformers:T5Model", None),  # tokens of the encoder and of the decoder
    ],
)
def test_what_a_library_calls_its_model_with(target: str, shape: tuple[int | str, ...] | None) -> None:
    assert [given.shape for given in usual_inputs(target)] == ([] if shape is None else [shape])


@pytest.mark.parametrize(
    ("typed", "answer"),
    [
        ("ResNet-50", "write timm:resnet50"),
        ("google/vit-base-patch16-224", "write timm:vit_base_patch16_224"),
        ("vit_b16", "write torchvision:vit_b_16"),
        ("bert-base-uncased", "write transformers:BertModel"),
        ("net.pt", "weights are not read; name the Python that builds the model, such as net.py:Net"),
        ("net.py", "write net.py:Name, of a class or a function without arguments in it: First, Second"),
    ],
)
def test_what_people_write_for_a_model_is_told_its_target(typed, answer, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text("raise SystemExit\nclass First: pass\ndef made(): pass\nclass Second: pass\n")
    with pytest.raises(TargetError, match=f"^target '{typed}': {answer}$"):
        rk.trace(typed)


@pytest.mark.parametrize(
    ("options", "answer"),
    [
        ({"precision": "bf16"}, "write autocast='bf16', or dtype='bf16' for weights too"),
        ({"compile": True}, "write execution='compiled'"),
        ({"training": True}, "write mode='training'"),
        ({"gpu": ["l4", "a10"]}, "compare_gpus, sweep and search take gpus="),
    ],
)
def test_words_of_other_libraries_lead_to_the_keyword(options: dict[str, object], answer: str) -> None:
    with pytest.raises(InputError, match=answer):
        rk.predict(torch.nn.ReLU(), rk.Input(8), **{"gpu": "nvidia-l4", **options})


def test_a_shape_without_input_and_a_loss_without_target_say_what_to_write() -> None:
    with pytest.raises(RooflinekitError, match=r"is written Input\(8, 3, 32, 32\)"):
        rk.trace(torch.nn.Conv2d(3, 8, 3), (8, 3, 32, 32))
    with pytest.raises(RooflinekitError, match="name what the loss compares with: targets="):
        rk.trace(torch.nn.Linear(8, 8), rk.Input(4, 8), mode="training", loss="cross_entropy")


def test_a_name_that_the_package_lacks() -> None:
    with pytest.raises(AttributeError, match="did you mean 'compare_gpus'"):
        rk.compare  # noqa: B018


def test_a_model_by_name() -> None:
    image = rk.Input("batch", 3, 64, 64)
    found = rk.predict("timm:resnet18", image, gpu="nvidia-l4", batch=2)
    assert found.graph.name == "resnet18"
    assert rk.trace("timm:resnet18", image).at(batch=2).matrix_flop == found.graph.matrix_flop
    with pytest.raises(TargetError, match="target 'resnet18': write timm:resnet18"):
        rk.trace("resnet18", image)


def trained() -> rk.Graph:
    return rk.trace(NET, X, mode="training")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: rk.predict(nn.Linear, X, gpu="l4"),
            r"expected an instance, such as Linear\(…\); got the class Linear",
        ),
        (lambda: rk.predict(NET, X, batch=4), "gpu is missing: name one, such as gpu='nvidia-l4'"),
        (lambda: rk.predict(rk.trace(NET, X), batch=4), "gpu is missing"),
        (lambda: rk.Input((8, 3, 32, 32)), r"sizes are arguments of their own: Input\(8, 3, 32, 32\), not"),
        (lambda: rk.predict(NET, gpu="l4"), r"give it by its shape or as a tensor: Input\(8, 3, 32, 32\), input=Input"),
        (
            lambda: rk.predict(NET, [8, 3, 32, 32], gpu="l4"),
            r"; the shape of a tensor is written Input\(8, 3, 32, 32\)",
        ),
        (lambda: rk.trace(rk.trace(NET, X)), "this Graph is traced already"),
        (lambda: rk.predict(rk.trace(NET, X), "l4", batch=4, dtype="bf16"), "dtype='bf16' belongs to the trace"),
        (lambda: rk.predict(rk.trace(NET, X), "l4", batch=4, mode="train"), "mode='train' belongs to the trace"),
        (lambda: rk.predict(trained(), "l4", batch=4, mode="inference"), "mode='inference' belongs to the trace"),
        (lambda: rk.compare_gpus(trained(), batch=4, mode="inference"), "mode='inference' belongs to the trace"),
        (lambda: rk.sweep(rk.trace(NET, X), gpus=["l4"], batch=[4], mode="training"), "mode='training' belongs to"),
        (lambda: rk.explore(rk.trace(NET, X), gpus=["l4"], mode="training"), "mode='training' belongs to the trace"),
        (
            lambda: rk.parallel(trained(), cluster="dgx-a100", strategy="tensor", batch=32, split="proportional"),
            "split: 'proportional' is of devices that run whole models",
        ),
        (lambda: rk.predict(rk.trace(NET, X), "l4", batch=4, executoin="compile"), "did you mean 'execution'"),
        (lambda: rk.sweep(rk.trace(NET, X), gpus=["l4"], batch=[4], client=["dgx-a100"]), "did you mean .*'clusters'"),
        (lambda: rk.sweep(NET, X, gpus=["l4"], batch=[4], memry=False), "did you mean 'memory'"),
        (lambda: rk.search(rk.trace(NET, X), gpus=["l4"], batch=[4], minimise="time"), "did you mean 'minimize'"),
        (lambda: rk.trace(NET, X, mode="training", optimizer=torch.optim.SGD(NET.parameters())), "such as 'SGD'"),
    ],
)
def test_what_cannot_be_meant_gets_a_sentence(call: Any, message: str) -> None:
    with pytest.raises(RooflinekitError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_the_beginning_of_a_name_means_the_names_that_begin_so() -> None:
    with pytest.raises(DeviceNotFoundError, match="did you mean 'nvidia-h100-"):
        rk.load_device("nvidia-h10")
    with pytest.raises(InputError, match="did you mean 'forward'"):
        rk.trace(NET, X, mode="forw")


@pytest.mark.slow
def test_a_type_checker_sees_a_misspelled_option(tmp_path: Path) -> None:
    (tmp_path / "call.py").write_text(
        "import rooflinekit as rk\nfrom torch import nn\n"
        "x = rk.Input('batch', 8)\n"
        "rk.predict(nn.Linear(8, 8), x, gpu='l4', execution='compiled', batch=4)\n"
        "rk.predict(nn.Linear(8, 8), x, gpu='l4', executoin='compiled', batch=4)\n"
        "rk.trace(nn.Linear(8, 8), x, optimiser='AdamW')\n"
    )
    command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), str(tmp_path / "call.py")]
    told = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT).stdout
    assert [line.split(":")[1] for line in told.splitlines() if "error" in line and "call.py" in line] == ["5", "6"]
