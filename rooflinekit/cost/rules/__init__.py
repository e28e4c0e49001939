"""Cost rules, one module a family of ops. Importing them registers them."""

from rooflinekit.cost.rules import (  # noqa: F401
    attention,
    convolution,
    elementwise,
    linalg,
    losses,
    matmul,
    movement,
    optimizer,
    recurrent,
    reduction,
    resampling,
    serving,
)
