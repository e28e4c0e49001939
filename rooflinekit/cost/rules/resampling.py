"""Images at other places: interpolation, sampling by a grid, windows as columns.

Interpolating along one dimension with t taps is t multiplications and t - 1 additions; along several, one dimension
after the other: linear in two dimensions 2·3 + 3 = 9, cubic 4·7 + 7 = 35. Weights that depend on the place alone are
shared by all images and channels and not counted, nor is index arithmetic. Taps beyond the border count like others.
"""

from __future__ import annotations

from rooflinekit.cost.rules.movement import zeros_then
from rooflinekit.cost.table import an_element, aten, family, per_input, reads, rule, traffic, work, writes
from rooflinekit.ir.cost import Cost, Gemm
from rooflinekit.ir.op import Family, Op, TensorSpec
from rooflinekit.ir.sizes import Size, product, smaller, total

# --- interpolation --------------------------------------------------------------------------------------------


def _taps_read(x: TensorSpec, y: TensorSpec, taps: int) -> Size:
    """Bytes that `taps` neighbours along each dimension touch: not all where the image shrinks."""
    touched = (smaller(i, product((taps, o))) for i, o in zip(x.shape[2:], y.shape[2:], strict=True))
    read = product((*x.shape[:2], *touched, x.dtype.itemsize))
    expanded = x.stride is not None and 0 in x.stride
    return smaller(x.bytes, read) if expanded else read


def _upsample(op: Op, taps: int, flop: int) -> Cost:
    (x,), (y,) = op.inputs, op.outputs
    return work(y.numel, flop) + Cost(read_bytes=_taps_read(x, y, taps)) + writes((y,))


def _upsample_backward(op: Op, taps: int, flop: int) -> Cost | list[Cost]:
    (grad,), (x,) = op.inputs, op.outputs
    if taps == 1:  # each element collects its own gradients
        return work(grad.numel, flop) + traffic(op)
    return zeros_then("sum", op, (grad,), _taps_read(x, grad, taps), flop=product((flop, grad.numel)))


#: Names, taps a dimension, FLOP an output element; FLOP an element of the gradient: times the weights of one dimension
#: after the other, and an addition for each product.
_UPSAMPLE = {
    "upsample_nearest1d upsample_nearest2d upsample_nearest3d "
    "_upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d": (1, 0, 1),
    "upsample_linear1d": (2, 3, 2 + 2),
    "upsample_bilinear2d": (2, 3 * 2 + 3, 2 + 4 + 4),
    "upsample_trilinear3d": (2, (3 * 2 + 3) * 2 + 3, 2 + 4 + 8 + 8),
    "upsample_bicubic2d": (4, 7 * 4 + 7, 4 + 16 + 16),
}
UPSAMPLES = aten(" ".join(_UPSAMPLE))
UPSAMPLE_GRADIENTS = tuple(f"{kind}_backward" for kind in UPSAMPLES)
for _names, (_taps, _forward, _gradient) in _UPSAMPLE.items():
    _back = " ".join(f"{name}_backward" for name in _names.split())
    family(_upsample, {_names: (_taps, _forward, an_element(_forward))})
    family(_upsample_backward, {_back: (_taps, _gradient, an_element(_gradient, each="element of the gradient"))})

#: Neighbours along a dimension that antialiasing weighs where nothing shrinks; shrinking widens them by its factor.
_ANTIALIASED = {"aten._upsample_bilinear2d_aa": 2, "aten._upsample_bicubic2d_aa": 4}


def _antialiased_taps(kind: str, x: TensorSpec, y: TensorSpec) -> tuple[Size, Size]:
    """Taps of all outputs, and those along the height: a support of t from I to O elements has t·max(I, O) in all."""
    support = _ANTIALIASED[kind]
    (height, width), (rows, columns) = x.shape[2:], y.shape[2:]

    def larger(a: Size, b: Size) -> Size:
        return total((a, b, product((-1, smaller(a, b)))))

    vertical = product((support, larger(height, rows)))
    horizontal = product((support, larger(width, columns)))
    images = product(y.shape[:2])
    return product((images, vertical, horizontal)), product((images, vertical, columns))


@rule(*_ANTIALIASED)
def upsample_antialiased(op: Op) -> Cost:
    """Output by output, with taps v × h: v rows of 2h - 1, then 2v - 1 across them: 2·v·h + v - 1."""
    (x,), (y,) = op.inputs, op.outputs
    both, vertical = _antialiased_taps(op.kind, x, y)
    return Cost(vector_flop=total((product((2, both)), vertical, product((-1, y.numel))))) + traffic(op)


@rule(*(f"{kind}_backward" for kind in _ANTIALIASED))
def upsample_antialiased_backward(op: Op) -> list[Cost]:
    """A gradient times the v weights of its column, each times the h of its row and added: v + 2·v·h."""
    (grad,), (x,) = op.inputs, op.outputs
    both, vertical = _antialiased_taps(op.kind.removesuffix("_backward"), x, grad)
    return zeros_then("sum", op, (grad,), x.bytes, flop=total((product((2, both)), vertical)))


# --- sampling by a grid ---------------------------------------------------------------------------------------

_BILINEAR, _NEAREST, _BICUBIC = range(3)
_ZEROS, _BORDER, _REFLECTION = range(3)


def _place(op: Op, dimensions: int) -> tuple[int, int]:
    """Vector FLOP and special functions of one place: its coordinates, and the weights of its neighbours.

    A coordinate is scaled, 3, and shifted by half a pixel unless corners are aligned, 1. At the border it is clipped,
    2; reflection takes the distance 2, the remainder and the number of reflections (divisions), a choice 1, a
    difference and a sum 2, and clips. Linear weights are both distances of a coordinate, 2, and one product for each
    corner and each further dimension; cubic ones 25 a coordinate (three distances, four polynomials 5, 5, 6 and 6).
    """
    mode, padding = op.attrs["interpolation_mode"], op.attrs["padding_mode"]
    coordinate = (3 if op.attrs["align_corners"] else 4) + {_ZEROS: 0, _BORDER: 2, _REFLECTION: 7}[padding]
    coordinate += {_BILINEAR: 2, _NEAREST: 1, _BICUBIC: 25}[mode]
    products = 2**dimensions * (dimensions - 1) if mode == _BILINEAR else 0
    return dimensions * coordinate + products, 2 * dimensions if padding == _REFLECTION else 0


def _neighbours(op: Op, dimensions: int) -> int:
    taps: int = {_BILINEAR: 2, _NEAREST: 1, _BICUBIC: 4}[op.attrs["interpolation_mode"]]
    return int(taps**dimensions)


@rule("aten.grid_sampler_2d", "aten.grid_sampler_3d")
def grid_sampler(op: Op) -> Cost:
    """Places cost once for all channels; an output a multiply-add for each neighbour, in cubic interpolation 35."""
    x, grid = op.inputs
    (y,) = op.outputs
    dimensions = len(x.shape) - 2
    places = product(grid.shape[:-1])
    taps = _neighbours(op, dimensions)
    flop = {1: 0, 16: 35}.get(taps, 2 * taps)
    read = Cost(read_bytes=smaller(x.bytes, product((taps, y.numel, x.dtype.itemsize))))
    return work(places, *_place(op, dimensions)) + work(y.numel, flop) + read + reads((grid,)) + writes((y,))


@rule("aten.grid_sampler_2d_backward", "aten.grid_sampler_3d_backward")
def grid_sampler_backward(op: Op) -> list[Cost]:
    """Places again. Gradient of the image: zeros, then a multiply-add for each neighbour (nearest: an addition).

    Of the grid: for each neighbour its value times the gradient, 1, and a multiply-add for each coordinate, 2; then
    one multiplication a coordinate. The nearest neighbour does not depend on the grid: zeros are written.
    """
    grad, x, grid = op.inputs
    wants_image, wants_grid = op.attrs.get("output_mask", (True, True))
    dimensions = len(x.shape) - 2
    places = product(grid.shape[:-1])
    taps = _neighbours(op, dimensions)
    nearest = taps == 1
    vector, special = _place(op, dimensions)
    image = (1 if nearest else 2 * taps) if wants_image else 0
    slope = taps * (1 + 2 * dimensions) if wants_grid and not nearest else 0
    scaled = dimensions if slope else 0
    touched = smaller(x.bytes, product((taps, grad.numel, x.dtype.itemsize)))
    kernel = Cost(
        read_bytes=total((touched if wants_image else 0, touched if slope else 0)),
        write_bytes=total((touched if wants_image else 0, grid.bytes if wants_grid else 0)),
        label="gradients",
    ) + reads((grad, grid))
    kernel += work(places, vector + scaled, special) + work(grad.numel, image + slope)
    return [Cost(label="zeros") + writes(op.outputs[:1]), kernel] if wants_image else [kernel]


@rule("aten.affine_grid_generator")
def affine_grid(op: Op) -> list[Cost]:
    """The places of an unmoved grid with a 1 behind each, then one product of them with each image's matrix."""
    (theta,), (y,) = op.inputs, op.outputs
    batch, to, extended = theta.shape
    places = product(y.shape[1:-1])
    base = product((batch, places, extended, y.dtype.itemsize))
    return [
        Cost(write_bytes=base, label="grid"),
        Cost(gemms=(Gemm(batch=batch, m=places, n=to, k=extended),), read_bytes=base) + reads((theta,)) + writes((y,)),
    ]


# --- windows as columns ---------------------------------------------------------------------------------------


family(
    traffic,
    {"im2col": ("A copy; an element stands in as many columns as there are windows over it.",)},
    timed_as=Family.MOVEMENT,
)
family(per_input, {"col2im": (1, "Each element of the columns added to its place.")}, timed_as=Family.MOVEMENT)
