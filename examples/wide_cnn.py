"""A small CNN that is all compute: three 7×7 convolutions of 512 channels at 112×112, then 100352 → 1024."""

from torch import nn


class WideCNN(nn.Sequential):
    """Input [batch, 3, 112, 112], output [batch, 1024]; each block halves height and width."""

    def __init__(self) -> None:
        blocks: list[nn.Module] = []
        for channels in (3, 512, 512):
            blocks += [nn.Conv2d(channels, 512, 7, padding=3), nn.ReLU(), nn.MaxPool2d(2)]
        super().__init__(*blocks, nn.Flatten(), nn.Linear(512 * 14 * 14, 1024))
