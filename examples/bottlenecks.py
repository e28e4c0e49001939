"""Fewer FLOP, yet not faster: a convolution and a bottleneck of it, twice.

Inputs: A and A_prime take [1, 64, 160, 120], B and B_prime [1, 256, 160, 120]. Measured on a P100 in fp32 with
PyTorch of 2018, wall time a pass and GPU kernel time, in µs: A 124 and 122, A_prime 123 and 71, B 214 and 207,
B_prime 99 and 96.
"""

from torch import nn


class A(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Conv2d(64, 64, 3, bias=False))


class A_prime(nn.Sequential):
    """About ten times fewer FLOP than A."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(64, 14, 1, bias=False), nn.Conv2d(14, 15, 3, bias=False), nn.Conv2d(15, 64, 1, bias=False)
        )


class B(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Conv2d(256, 128, 1, bias=False))


class B_prime(nn.Sequential):
    """85 times fewer FLOP than B."""

    def __init__(self) -> None:
        super().__init__(nn.Conv2d(256, 1, 1, bias=False), nn.Conv2d(1, 128, 1, bias=False))
