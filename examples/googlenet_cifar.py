"""GoogLeNet for images of 32 × 32: nine inception modules behind one convolution, no auxiliary outputs.

The widths are those of Szegedy and others (2014), table 1; the first layers, which would shrink an image of 224, are
one 3 × 3 convolution here, and each convolution is followed by batch normalization, as such networks for CIFAR-10 are.
"""

import torch
from torch import nn


def _convolution(inputs: int, outputs: int, kernel: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)
    )


class Inception(nn.Module):
    """Four branches side by side: 1 × 1, 3 × 3, 5 × 5 (as two of 3 × 3) and a pool."""

    def __init__(self, inputs: int, one: int, reduce3: int, three: int, reduce5: int, five: int, pool: int) -> None:
        super().__init__()
        self.one = _convolution(inputs, one, 1)
        self.three = nn.Sequential(_convolution(inputs, reduce3, 1), _convolution(reduce3, three, 3))
        self.five = nn.Sequential(
            _convolution(inputs, reduce5, 1), _convolution(reduce5, five, 3), _convolution(five, five, 3)
        )
        self.pool = nn.Sequential(nn.MaxPool2d(3, stride=1, padding=1), _convolution(inputs, pool, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.one(x), self.three(x), self.five(x), self.pool(x)], 1)


class GoogLeNet(nn.Module):
    """Ten classes."""

    def __init__(self) -> None:
        super().__init__()
        self.first = _convolution(3, 192, 3)
        self.a3 = Inception(192, 64, 96, 128, 16, 32, 32)
        self.b3 = Inception(256, 128, 128, 192, 32, 96, 64)
        self.a4 = Inception(480, 192, 96, 208, 16, 48, 64)
        self.b4 = Inception(512, 160, 112, 224, 24, 64, 64)
        self.c4 = Inception(512, 128, 128, 256, 24, 64, 64)
        self.d4 = Inception(512, 112, 144, 288, 32, 64, 64)
        self.e4 = Inception(528, 256, 160, 320, 32, 128, 128)
        self.a5 = Inception(832, 256, 160, 320, 32, 128, 128)
        self.b5 = Inception(832, 384, 192, 384, 48, 128, 128)
        self.shrink = nn.MaxPool2d(3, stride=2, padding=1)
        self.classes = nn.Linear(1024, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.shrink(self.b3(self.a3(self.first(x))))
        x = self.shrink(self.e4(self.d4(self.c4(self.b4(self.a4(x))))))
        x = self.b5(self.a5(x))
        return self.classes(x.mean((2, 3)))
