"""Products and convolutions under torch.compile's max-autotune: Triton's templates beside the library's kernels.

inductor times both and keeps the least (torch/_inductor/select_algorithm.py). A template of a product takes pointwise
work on its result into its last step, which saves a pass over memory: the library's kernel with that work behind it
is timed against the template with it (scheduler.py, `benchmark_epilogue_fusion`). GPUs of fewer than 68 SMs have no
templates of products (utils.py, `is_big_gpu`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from rooflinekit.hardware.device import Device
from rooflinekit.ir.cost import Cost
from rooflinekit.ir.op import Family, Math, Op
from rooflinekit.ir.points import integer
from rooflinekit.kernels import cudnn
from rooflinekit.kernels.algorithms import ceiled
from rooflinekit.kernels.grouping import Group
from rooflinekit.kernels.inlining import Dataflow
from rooflinekit.kernels.kernel import Issue, Kernel
from rooflinekit.kernels.loops import Loop
from rooflinekit.published.stated import NUMBERS

FEWEST_SMS = 68
#: Of a convolution: by the rate of cuDNN's, on whatever GPU.
TEMPLATE = replace(cudnn.FORWARD, name="template", library="")
#: Rates of templates, of the library's kernels. On CUDA cores there is no product's worth taking: of KernelBench's fp32
#: products in half of its problems none became faster by max-autotune on an L40S. Volumes keep the library's
#: convolution: some took 0.7 of its time there and some 1.7 times as long.
_PRODUCT, _CONVOLUTION = (NUMBERS[name].value for name in ("template product", "template convolution"))
_STEP = 16  # channels that a step of the template multiplies at least


def may_fuse(device: Device | None) -> bool:
    """Whether the device has templates of products."""
    return device is not None and device.kind == "gpu" and device.sm_count >= FEWEST_SMS


def fuse_into_templates(made: list[tuple[Issue, ...]], groups: Sequence[Group], flow: Dataflow, device: Device) -> None:
    """Replaces products, and pointwise work that follows them, where a template does both in less time."""
    for i, issues in enumerate(made):
        if len(issues) != 1 or issues[0].family is not Family.MATMUL or len(issues[0].kernels) != 1:
            continue
        behind = _only_reader(groups, i, flow)
        if behind is None or len(made[behind]) != 1:
            continue
        (result,) = groups[i].buffers[0].writes.values()
        (product,), (work, *_) = issues[0].kernels, made[behind][0].kernels
        kernel = templated(product, work, integer(result.bytes), device)
        if kernel is not None:
            made[i] = ()
            made[behind] = (replace(made[behind][0], family=Family.MATMUL, kernels=(kernel,)),)


def _only_reader(groups: Sequence[Group], i: int, flow: Dataflow) -> int | None:
    """Index of the pointwise group that alone reads a product, each element at its place; None where there is none."""
    values = groups[i].written
    if len(values) != 1 or values & flow.kept:
        return None
    (value,) = values
    readers = [k for k, group in enumerate(groups) if any(name == value for name, _ in group.read)]
    if len(readers) != 1 or groups[readers[0]].loop is not Loop.POINTWISE:
        return None
    (spec,) = groups[i].buffers[0].writes.values()
    whole = all(view == "" for name, view in groups[readers[0]].read if name == value)
    return readers[0] if whole and groups[readers[0]].outer == integer(spec.numel) else None


def templated(product: Kernel, behind: Kernel, result: int, device: Device) -> Kernel | None:
    """One kernel for a product and the work behind it, where it takes less than both. result: bytes between them."""
    if product.math not in device.matrix_peak:
        return None
    cost = replace(
        product.cost,
        vector_flop=integer(product.cost.vector_flop) + integer(behind.cost.vector_flop),
        special_flop=integer(product.cost.special_flop) + integer(behind.cost.special_flop),
        read_bytes=integer(product.cost.read_bytes) + integer(behind.cost.read_bytes) - result,
        write_bytes=behind.cost.write_bytes,
    )
    apart_s = _least_s(product.cost, product.math, device) + _least_s(behind.cost, behind.math, device)
    if _least_s(cost, product.math, device, _PRODUCT) >= apart_s:
        return None
    name = f"triton_tem_fused_{product.kind.rpartition('.')[2]}_{behind.name.partition('_fused_')[2]}"
    return replace(behind, name=name, family=Family.MATMUL, math=product.math, cost=cost, padded=1 / _PRODUCT)


def _least_s(cost: Cost, math: Math, device: Device, share: float = 1.0) -> float:
    """Seconds by the datasheet: at `share` of the peak of products, or of the bandwidth."""
    products = integer(cost.matrix_flop) / (share * device.peak(math)) if cost.gemms else 0.0
    return max(products, integer(cost.bytes) / device.dram.bandwidth)


def with_template(op: Op, kernels: Sequence[Kernel], tensor_formats: Collection[str]) -> Iterator[Kernel]:
    """A convolution's kernels, with the template for forward ones of images on a tensor core where there is one."""
    plain = op.kind == "aten.convolution" and not op.attrs.get("transposed") and op.attrs["groups"] == 1
    plain = plain and set(op.attrs.get("dilation", (1,))) == {1} and len(op.inputs[1].shape) == 4
    inner = integer(op.inputs[1].shape[1])
    filled = ceiled(inner, _STEP) * _STEP / inner
    for kernel in kernels:
        if plain and kernel.cost.gemms and kernel.math in tensor_formats:
            template = replace(kernel, algorithm=TEMPLATE, padded=filled / _CONVOLUTION, alternatives=())
            yield replace(kernel, alternatives=(*kernel.alternatives, template))
        else:
            yield kernel
