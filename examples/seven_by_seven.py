"""A plain CNN of 7×7 convolutions with 512 channels: almost all of its FLOP are far right of any ridge point.

Input [batch, 3, height, width], output [batch, 10]. Its four wide layers hold 51 million weights, which an optimizer
goes through in every step of training, whatever the batch.
"""

from torch import nn


class SevenBySeven(nn.Sequential):
    """A stem of 3 to 512 channels, four blocks of convolution, batch norm and ReLU, and a classifier."""

    def __init__(self) -> None:
        blocks: list[nn.Module] = [nn.Conv2d(3, 512, 7, padding=3)]
        for _ in range(4):
            blocks += [nn.Conv2d(512, 512, 7, padding=3, bias=False), nn.BatchNorm2d(512), nn.ReLU()]
        super().__init__(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))
