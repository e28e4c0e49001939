"""What launches for a convolution: its product, layout copies, the bias, Winograd forms, and kernels without tiles.

Where there is nothing to tile (a channel a group), or a library has no tiled kernel, each thread walks the window of
its result by itself. PyTorch has such kernels of its own (aten/src/ATen/native/cuda/DepthwiseConv2d.cu); cuDNN takes
over where aten/src/ATen/native/Convolution.cpp (use_cudnn_depthwise) says so.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace

from rooflinekit.ir.cost import Cost, Gemm
from rooflinekit.ir.op import Op
from rooflinekit.ir.points import integer
from rooflinekit.ir.sizes import Size
from rooflinekit.ir.tensor import Math, TensorSpec
from rooflinekit.model.kernel import Family, Kernel
from rooflinekit.model.rows import NO_ROWS

WINOGRAD_EDGES = (2, 4)  # of a block of outputs
WINOGRAD_UNFUSED = 4  # the edge whose transformed tensors go through memory

#: Kernels without tiles, where they are not the unrolled ones, by the names that `Kernel.algorithm` gives them.
WINDOW_LOOP = "window loop"  # the compiler does not know the window's size
SHARED_WINDOWS = "shared windows"  # threads whose windows overlap fetch what they share once
TAP_SUMS = "sums by tap"  # of a weight's gradient: for each of its numbers once over all pixels
CHANNEL_PRODUCTS = "a product a channel"  # as of any other grouped convolution, each of one channel

_UNROLLED = (1, 3, 5)  # square windows, of PyTorch's kernels and of cuDNN's with channels first
_UNROLLED_LAST = 7  # of cuDNN's with channels last, up to which timm's benchmark sees no fall (ConvNeXt, ConvMixer)
_WIDEST_GROUP = 32  # channels a group up to which cuDNN tiles gradients with channels last (timm's training rows)
_TENSOR_CORES = frozenset({"fp16"})  # of Volta, the first


def convolution_kernels(kernel: Kernel, op: Op) -> Iterator[Kernel]:
    """The kernels for one part of a convolution, given as a plain product.

    A bias is a kernel of its own, which reads and writes the output once more.
    """
    direct = is_depthwise(kernel.cost)
    algorithm = _algorithm(op, kernel) if direct else ""
    engine = not direct and not _is_untiled(op, kernel)
    kernel = replace(kernel, engine=engine, algorithm=algorithm, pointwise=_is_pointwise(op))
    if op.kind != "aten.convolution":
        yield _with_winograd(kernel, op) if kernel.cost.label == "input gradient" else kernel
        return
    if op.attrs.get("bias") is None:
        yield _with_winograd(kernel, op)
        return
    output = integer(op.outputs[0].bytes)
    bias = integer(op.attrs["bias"].bytes)
    vector = kernel.cost.vector_flop
    product_cost = replace(kernel.cost, vector_flop=0, read_bytes=integer(kernel.cost.read_bytes) - bias)
    added = Cost(vector_flop=vector, read_bytes=output + bias, write_bytes=output, label="bias")
    yield _with_winograd(replace(kernel, cost=product_cost), op)
    yield replace(
        kernel, name=f"{kernel.name}: bias", cost=added, family=Family.ELEMENTWISE, math=Math.FP32, algorithm=""
    )


# --- kernels without tiles -------------------------------------------------------------------------------------------


def is_depthwise(cost: Cost) -> bool:
    """One channel in and one out a group: there is nothing for a matrix engine to contract but the window."""
    return any(gemm.batch != 1 and 1 in (gemm.n, gemm.m) for gemm in cost.gemms)


def _algorithm(op: Op, kernel: Kernel) -> str:
    image, weight = _image_and_weight(op)
    stride = op.attrs.get("stride", (1,))
    return depthwise_algorithm(
        channels_last=_channels_last(image),
        sixteen_bits=image.dtype.itemsize == 2,
        window=tuple(map(int, weight.shape[2:])),
        plain=len(set(stride)) == 1 and set(op.attrs.get("dilation", (1,))) == {1},
        stride=int(max(stride)),
        shape=image.shape,
        forward=op.kind == "aten.convolution",
        sums=kernel.cost.label == "weight gradient",
    )


def depthwise_algorithm(
    *,
    channels_last: bool,
    sixteen_bits: bool,
    window: Sequence[int],
    plain: bool,
    stride: int,
    shape: Sequence[Size],
    forward: bool,
    sums: bool,
) -> str:
    """How a depthwise convolution of an image [N, C, …, W] runs on a GPU: "" for an unrolled kernel.

    plain: equal strides in all directions, no dilation. sums: the gradient of the weight.
    """
    if channels_last:
        if max(window) > _UNROLLED_LAST:
            return CHANNEL_PRODUCTS
        return SHARED_WINDOWS if forward else ""
    if sums:
        return TAP_SUMS
    unrolled = len(set(window)) == 1 and window[0] in _UNROLLED
    library = sixteen_bits and plain and _library_takes(window, stride, shape)
    return "" if unrolled or library else WINDOW_LOOP


def _library_takes(window: Sequence[int], stride: int, shape: Sequence[Size]) -> bool:
    """Whether cuDNN runs a depthwise convolution of 16 bits with channels first (check_cudnn_depthwise_workload)."""
    images, channels, width = shape[0], shape[1], shape[-1]
    if channels < 32:
        return False
    if len(window) == 1:
        return stride == 1
    if len(set(window)) > 1 or window[0] not in _UNROLLED or width < 7:
        return False
    return stride == 1 or (stride == 2 and bool(images == 1 or channels >= 512 or (channels >= 256 and width >= 28)))


def _is_untiled(op: Op, kernel: Kernel) -> bool:
    """Whether cuDNN has no tiled kernel for a gradient: of wide groups with channels last, in 16 bits.

    inductor keeps such training steps from channels last too (torch/_inductor/graph.py, decide_layout_opt).
    """
    if "gradient" not in kernel.cost.label or not kernel.cost.gemms or op.attrs["groups"] == 1:
        return False
    image, weight = _image_and_weight(op)
    return image.dtype.itemsize == 2 and _channels_last(image) and bool(weight.shape[1] > _WIDEST_GROUP)


def _image_and_weight(op: Op) -> tuple[TensorSpec, TensorSpec]:
    """What was convolved with what; a backward's first input is the output's gradient."""
    first = 1 if op.kind == "aten.convolution_backward" else 0
    return op.inputs[first], op.inputs[first + 1]


# --- layouts ---------------------------------------------------------------------------------------------------------


def with_layout_copies(op: Op, kernels: Iterable[Kernel], engines: Collection[str]) -> Iterator[Kernel]:
    """The kernels of a convolution, with the copies to and from channels last that the matrix engine asks for.

    A convolution of one pixel is a product in either layout. Its gradients are only where libraries have kernels for
    channels first, as they did for the first tensor cores (DeepBench on V100 shows no copies; timm's training on
    RTX 3090 does).
    """
    for plain in kernels:
        on_engine = plain.engine and plain.math in engines
        kernel = _by_image(plain, op) if on_engine else plain
        either = kernel.pointwise and ("gradient" not in kernel.cost.label or _TENSOR_CORES.issuperset(engines))
        copied = on_engine and not either and kernel.cost.gemms
        read = 2 if kernel.cost.label == "weight gradient" else 1
        written = 0 if kernel.cost.label == "weight gradient" else 1
        before = [t for t in op.inputs[:read] if copied and not _channels_last(t)]
        after = [t for t in op.outputs[:written] if copied and len(t.shape) > 2 and not _channels_last(t)]
        yield from (_copy(kernel, tensor, "to channels last") for tensor in before)
        yield kernel
        yield from (_copy(kernel, tensor, "from channels last") for tensor in after)


def _by_image(kernel: Kernel, op: Op) -> Kernel:
    """A convolution of one pixel, channels first, on the matrix engine: a product for each image.

    Pixels of two images do not lie behind each other, so no tile holds pixels of both.
    """
    if not kernel.pointwise or op.kind != "aten.convolution" or _channels_last(op.inputs[0]):
        return kernel
    images = integer(op.outputs[0].shape[0])
    gemms = tuple(replace(g, batch=integer(g.batch) * images, m=integer(g.m) // images) for g in kernel.cost.gemms)
    return replace(kernel, cost=replace(kernel.cost, gemms=gemms))


def _channels_last(tensor: TensorSpec) -> bool:
    return tensor.stride is not None and tensor.stride[1] == 1


def _copy(kernel: Kernel, tensor: TensorSpec, label: str) -> Kernel:
    size = integer(tensor.bytes)
    return replace(
        kernel,
        name=f"{kernel.name} ({tensor.name} {label})",
        family=Family.MOVEMENT,
        math=Math.FP32,
        cost=Cost(read_bytes=size, write_bytes=size, label=label),
        alternatives=(),
        rows=NO_ROWS,
        reread_bytes=0,
    )


# --- algorithms ------------------------------------------------------------------------------------------------------


def _is_pointwise(op: Op) -> bool:
    """Whether each output pixel sees one input pixel."""
    weight = _image_and_weight(op)[1]
    return set(weight.shape[2:]) == {1} and set(op.attrs.get("stride", (1,))) == {1}


def _with_winograd(kernel: Kernel, op: Op) -> Kernel:
    """A 3×3 convolution of stride 1 with its Winograd forms F(2×2, 3×3) and F(4×4, 3×3) as alternatives.

    A block of e×e outputs takes (e + 2)² multiplications instead of 9·e²: as many products of [blocks, C] with [C, K]
    (Lavin and Gray, 2016). The larger one keeps its transformed tensors in memory between the kernels of its own.
    """
    source, result, weight, attrs = op.inputs[0], op.outputs[0], _image_and_weight(op)[1], op.attrs
    plain = attrs["groups"] == 1 and not attrs["transposed"] and set(attrs["stride"]) == set(attrs["dilation"]) == {1}
    if not plain or tuple(weight.shape[2:]) != (3, 3):
        return kernel
    (n, k, p, q), c = map(integer, result.shape), integer(source.shape[1])
    found = []
    for edge in WINOGRAD_EDGES:
        batch, blocks = (edge + 2) ** 2, n * -(-p // edge) * -(-q // edge)
        moved = result.dtype.itemsize * batch * blocks * (c + k) if edge == WINOGRAD_UNFUSED else 0
        cost = replace(
            kernel.cost,
            gemms=(Gemm(batch=batch, m=blocks, n=k, k=c),),
            read_bytes=integer(kernel.cost.read_bytes) + moved,
            write_bytes=integer(kernel.cost.write_bytes) + moved,
        )
        found.append(replace(kernel, name=f"{kernel.name} (Winograd)", algorithm="Winograd", cost=cost))
    return replace(kernel, alternatives=tuple(found))
