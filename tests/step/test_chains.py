"""Chains of steps in a prediction: how many, how long, and the sentence that says so."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import rooflinekit as rk
from rooflinekit.kernels.kernel import Chain
from rooflinekit.step.chains import chain_sentences, chains_of
from rooflinekit.step.prediction import Prediction

GPU = "nvidia-a100-sxm4-80gb"


class Tagger(nn.Module):
    """A recurrent layer between others."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.words, self.lstm, self.head = nn.Embedding(1000, 256), nn.LSTM(256, 256, layers), nn.Linear(256, 20)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(self.words(x))[0])  # type: ignore[no-any-return]


def predicted(layers: int, batch: int = 10, gpu: str = GPU, **options: object) -> Prediction:
    graph = rk.trace(Tagger(layers), rk.Input(100, "batch", dtype="int64"), **options)
    return rk.predict(graph, gpu, batch=batch)


def test_a_stack_is_bound_by_its_launches() -> None:
    p = predicted(6)
    (chain,) = chains_of(p)
    # the sixth layer ends 5 steps after the first; 2 kernels for each of 6·100 cells
    assert (chain.module, chain.links, chain.kernels) == ("lstm", 105, 1200)
    assert (chain.limit, chain.too_small) == ("launches", True)
    (sentence,) = chain_sentences(p)
    assert sentence.startswith("lstm is a chain of 105 steps, each too small for the GPU: ")
    assert "the CPU launches its 1200 kernels one by one" in sentence
    assert any(sentence in line for line in str(p).splitlines())


def test_the_kernels_of_all_steps_are_counted() -> None:
    p = predicted(6)
    assert p.launched == len(p.timings) - 1 + 1200
    assert p.to_dict()["kernels"] == p.launched
    assert p.to_dict()["chains"][0]["links"] == 105


def test_a_single_layer_is_bound_by_the_starts_of_its_kernels() -> None:
    (chain,) = chains_of(predicted(1))
    assert chain.limit == "starts"
    assert chain.total_s == pytest.approx(chain.links * chain.link_s)


def test_steps_of_much_work_are_no_longer_too_small() -> None:
    (chain,) = chains_of(predicted(1, batch=65536))
    assert (chain.limit, chain.too_small) == ("work", False)


def test_backward_has_a_chain_and_a_sentence_of_its_own() -> None:
    p = predicted(6, mode="training", loss=lambda y: y.sum())
    assert [chain.phase for chain in chains_of(p)] == ["forward", "backward"]
    assert sum("lstm (backward) is a chain" in sentence for sentence in chain_sentences(p)) == 1
    assert {t.kernel.part for t in p.timings if t.kernel.chain} == {"chain of 105 steps", "chain of 105 steps back"}


def test_images_one_after_another_are_no_chain_of_steps() -> None:
    """As MIOpen takes some convolutions, whatever the time of that on a GPU."""
    graph = rk.trace(nn.Sequential(nn.Conv2d(8, 8, 3)), rk.Input(4, 8, 16, 16), tf32=False)
    p = rk.predict(graph, GPU)
    (span, *others) = p.spans
    by_image = replace(span.timing.kernel, chain=Chain(links=4, kernels=8, starts=8))
    line = replace(p.timeline, spans=(replace(span, timing=replace(span.timing, kernel=by_image)), *others))
    assert by_image.part == span.timing.kernel.part
    (sentence,) = chain_sentences(replace(p, timeline=line))
    assert sentence.startswith("0 takes 4 images one after another: ")


def test_without_recurrence_nothing_is_said() -> None:
    p = rk.predict(rk.trace(nn.Linear(256, 256), rk.Input(8, 256)), GPU)
    assert not list(chain_sentences(p))
    assert p.launched == len(p.timings)


def test_the_terms_of_a_chain_add_up() -> None:
    p = predicted(6)
    (chain,) = chains_of(p)
    assert sum(p.terms().values()) == pytest.approx(p.total_s)
    assert chain.total_s < p.total_s
    assert chain.waited_s <= p.terms()["overhead"]


@pytest.mark.parametrize(("gpu", "math"), [("amd-mi300x", "fp32"), (GPU, "tf32")])
def test_layers_of_miopen_multiply_whole_fp32_numbers(gpu: str, math: str) -> None:
    """MI300X has units for tf32, which its library of recurrent layers does not ask for."""
    graph = rk.trace(nn.LSTM(8, 8), rk.Input(3, 2, 8))
    assert {t.kernel.math for t in rk.predict(graph, gpu).timings if t.kernel.cost.gemms} == {math}
