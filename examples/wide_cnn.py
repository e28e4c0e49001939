"""A network that is too large for small cards: blocks of 7 × 7 convolutions with 512 channels."""

from torch import nn


def _block(channels: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels, channels, 7, padding=3, bias=False), nn.BatchNorm2d(channels), nn.ReLU(inplace=True)
    )


def WideCNN(channels: int = 512, blocks: int = 4) -> nn.Sequential:  # noqa: N802 - named like the class it stands for
    """Ten classes from images of any size."""
    return nn.Sequential(
        nn.Conv2d(3, channels, 3, padding=1), *(_block(channels) for _ in range(blocks)),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10),
    )  # fmt: skip
