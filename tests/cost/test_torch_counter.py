"""PyTorch's own FLOP counter as a second opinion on matrix products, where it is right."""

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from rooflinekit import Input


class Attention(nn.Module):
    """Self-attention written with matrix products."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.project = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        b, s, width = x.shape
        q, k, v = self.project(x).view(b, s, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        weights = (q @ k.transpose(-2, -1)).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).reshape(b, s, width))


class Residual(nn.Module):
    """A bottleneck with a strided path and a shortcut."""

    def __init__(self):
        super().__init__()
        self.path = nn.Sequential(
            nn.Conv2d(6, 4, 1, bias=False),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.Conv2d(4, 4, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.Conv2d(4, 10, 1, bias=False),
        )
        self.shortcut = nn.Conv2d(6, 10, 1, stride=2)

    def forward(self, x):
        return torch.relu(self.path(x) + self.shortcut(x))


class Tied(nn.Module):
    """One weight for the input table and the output product."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(20, 8)
        self.head = nn.Linear(8, 20, bias=False)
        self.head.weight = self.table.weight

    def forward(self, tokens):
        return self.head(self.table(tokens))


class Recurrent(nn.Module):
    """A cell called once a step of the sequence."""

    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(4, 6)

    def forward(self, x):
        state = x.new_zeros(x.shape[0], 6)
        for step in x.unbind(1):
            state = self.cell(step, state)
        return state


MODELS = {
    "linear": (lambda: nn.Linear(4, 5), (3, 4)),
    "linear of 3 dimensions": (lambda: nn.Linear(4, 5), (2, 3, 4)),
    "linear of a vector": (lambda: nn.Linear(4, 5), (4,)),
    "perceptron": (lambda: nn.Sequential(nn.Linear(4, 5), nn.GELU(), nn.Linear(5, 6)), (3, 4)),
    "convolution 1d": (lambda: nn.Conv1d(6, 8, 3), (2, 6, 20)),
    "convolution 2d": (lambda: nn.Conv2d(6, 8, 3, padding=1), (2, 6, 9, 7)),
    "convolution 3d": (lambda: nn.Conv3d(2, 4, 3), (2, 2, 5, 6, 7)),
    "strided": (lambda: nn.Conv2d(3, 8, 7, stride=2, padding=3), (2, 3, 32, 32)),
    "dilated": (lambda: nn.Conv2d(4, 6, 3, dilation=2), (2, 4, 9, 9)),
    "transposed": (lambda: nn.ConvTranspose2d(4, 6, 3, stride=2), (2, 4, 5, 5)),
    "two convolutions": (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 5, 3)), (2, 3, 9, 9)),
    "residual": (Residual, (2, 6, 8, 8)),
    "attention": (lambda: Attention(8, 2), (2, 5, 8)),
    "transformer layer without attention": (
        lambda: nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8)),
        (2, 5, 8),
    ),
    "convolution and head": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5)),
        (2, 3, 9, 9),
    ),
    "tied": (Tied, (2, 5)),
    "recurrent cell": (Recurrent, (2, 3, 4)),
}


def _torch_counts(build, shape, training):
    with torch.device("meta"):
        model = build()
        x = torch.zeros(shape, dtype=torch.int64) if isinstance(model, Tied) else torch.zeros(shape)
    model.train(training)
    with FlopCounterMode(display=False) as counter, torch.set_grad_enabled(training):
        output = model(x)
        if training:
            output.sum().backward()
    return counter.get_total_flops()


@pytest.mark.parametrize("mode", ["inference", "training"])
@pytest.mark.parametrize(("build", "shape"), MODELS.values(), ids=MODELS)
def test_matrix_flop_agrees_with_torch(traced, build, shape, mode):
    model = build()
    dtype = "int64" if isinstance(model, Tied) else "float32"
    graph = traced(model, Input(*shape, dtype=dtype), mode=mode)
    assert graph.matrix_flop == _torch_counts(build, shape, mode == "training")


GROUPED = {
    # 2 · 2·6·6 · 12 · 2·3·3
    "grouped": (lambda: nn.Conv2d(8, 12, 3, padding=1, groups=4), (2, 8, 6, 6), 31104),
    # 2 · 2·6·6 · 8 · 3·3
    "depthwise": (lambda: nn.Conv2d(8, 8, 3, padding=1, groups=8), (2, 8, 6, 6), 10368),
    # 2 · 2·5·5 · 4 · 3·3·3
    "transposed grouped": (lambda: nn.ConvTranspose2d(4, 6, 3, stride=2, groups=2), (2, 4, 5, 5), 10800),
}


@pytest.mark.parametrize(("build", "shape", "flop"), GROUPED.values(), ids=GROUPED)
def test_grouped_convolutions_agree_with_torch_in_inference_alone(traced, build, shape, flop):
    assert traced(build(), shape).matrix_flop == flop == _torch_counts(build, shape, training=False)
    # The weight gradient has the multiply-adds of the forward pass. torch 2.13 counts it as if there were no groups:
    # 4, 8 and 2 times too much here.
    assert traced(build(), shape, mode="training").matrix_flop == 2 * flop
