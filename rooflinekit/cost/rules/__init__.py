"""Cost rules, one module a family of ops. Importing them registers them."""

from rooflinekit.cost.rules import (  # noqa: F401
    attention,
    convolution,
    elementwise,
    losses,
    matmul,
    movement,
    normalization,
    optimizer,
    pooling,
    recurrent,
    reduction,
)
