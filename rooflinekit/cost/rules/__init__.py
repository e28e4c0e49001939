"""Cost rules, one module a family of ops. Importing them registers them."""

from rooflinekit.cost.rules import (  # noqa: F401
    activations,
    attention,
    convolution,
    elementwise,
    fourier,
    indexing,
    linalg,
    losses,
    matmul,
    movement,
    normalization,
    optimizer,
    pooling,
    quantized,
    random,
    recurrent,
    reduction,
    resampling,
    serving,
    sparse,
)
