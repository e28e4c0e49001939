"""Kernels that torch.compile makes of a network on a GPU: what torch's own inductor makes, beside what is predicted.

    python -m benchmarks.coverage.inductor efficientnet_b0 [--batch 32] [--dtype float16] [--training] [--list]

Names are timm's. Inductor lowers and schedules the network and writes its Triton kernels for a CUDA device of which it
is told no more than the properties: nothing is compiled or run, and no GPU is needed. It wants the package `triton` of
torch's release (`pip install triton==3.7.1` for torch 2.13). Bytes are those of the buffers that a kernel reads and
writes, each once. Attention is traced as the CPU's, which makes its inputs contiguous: copies before it do not count.

`--training` shows the forward and the backward pass of the network without loss and optimizer, as AOTAutograd parts
them. Inductor takes both gradients of a convolution as one call and counts atomic sums among its own kernels.
"""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch

import rooflinekit as rk
from rooflinekit.hardware.device import Device
from rooflinekit.hardware.specs import load_device
from rooflinekit.tracing.targets import declare_torchvision_operators

_GPU, _WHERE = "nvidia-a100-sxm4-80gb", "cuda:0"


@dataclass(frozen=True, slots=True)
class Made:
    """A kernel: what it computes, the bytes of its buffers, and whether it is a library's."""

    name: str
    bytes: int
    library: bool


def of_inductor(
    model: torch.nn.Module, inputs: Sequence[torch.Tensor], device: Device, *, training: bool = False
) -> list[Made]:
    """The kernels that inductor makes of a model on the meta device, in their order; the backward pass last."""
    from torch._functorch.partitioners import min_cut_rematerialization_partition
    from torch._inductor import config, decomposition
    from torch._inductor.compile_fx import _recursive_joint_graph_passes
    from torch._inductor.virtualized import V
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    learned, buffers = dict(model.named_parameters()), dict(model.named_buffers())
    given = [*learned.values(), *buffers.values(), *inputs, *([model(*inputs)] if training else ())]
    called = _stepped(model, list(learned), list(buffers)) if training else _called(model, [*learned, *buffers])
    mode = FakeTensorMode(static_shapes=True)
    settings = {"shape_padding": False, "joint_graph_constant_folding": False, "fx_graph_cache": False}
    with torch.set_grad_enabled(training), _pretended(device), config.patch(settings):
        with mode:
            on_cpu = [torch.empty(t.shape, dtype=t.dtype, device="cpu") for t in given]
            pure = torch.func.functionalize(called, remove="mutations")
            graph = make_fx(pure, decomposition_table=decomposition.select_decomp_table())(*on_cpu)
        if training:
            _name_tangents(graph)
        with V.set_fake_mode(mode), mode:
            _recursive_joint_graph_passes(graph, input_device=torch.device("cpu"))
            if not training:
                return _kernels_of(graph, mode, {}, is_inference=True)
            kept = 1 + len(buffers)
            forward, backward = min_cut_rematerialization_partition(graph, on_cpu, num_fwd_outputs=kept)
        strides: dict[str, tuple[int, ...]] = {}
        return [
            *_kernels_of(forward, mode, strides, is_inference=False),
            *_kernels_of(backward, mode, strides, is_inference=False, is_backward=True),
        ]


def _called(model: torch.nn.Module, names: Sequence[str]) -> Callable[..., Any]:
    def called(*tensors: torch.Tensor) -> Any:
        given = dict(zip(names, tensors, strict=False))
        return torch.func.functional_call(model, given, tensors[len(names) :])

    return called


def _stepped(model: torch.nn.Module, learned: list[str], buffers: list[str]) -> Callable[..., Any]:
    """Of parameters, buffers, inputs and the result's gradient: the result, the buffers after it, the gradients."""
    n = len(learned)

    def stepped(*tensors: torch.Tensor) -> Any:
        held, images, gradient = tensors[n : n + len(buffers)], tensors[n + len(buffers) : -1], tensors[-1]

        def forward(*parameters: torch.Tensor) -> Any:
            after = {name: tensor.clone() for name, tensor in zip(buffers, held, strict=True)}
            given = {**dict(zip(learned, parameters, strict=True)), **after}
            return torch.func.functional_call(model, given, images), list(after.values())

        result, pulled, after = torch.func.vjp(forward, *tensors[:n], has_aux=True)
        return (result, *after, *pulled(gradient))

    return stepped


def _name_tangents(graph: torch.fx.GraphModule) -> None:
    """The partitioner tells the inputs of both passes by their names."""
    given = [node for node in graph.graph.nodes if node.op == "placeholder"]
    for i, node in enumerate(given):
        node.name = node.target = "tangents_1" if i == len(given) - 1 else f"primals_{i + 1}"
    graph.recompile()


@torch.no_grad()
def _kernels_of(graph: torch.fx.GraphModule, mode: Any, strides: dict[str, tuple[int, ...]], **how: bool) -> list[Made]:
    """Kernels of a graph that was traced on the CPU. strides: of named values; those of its results are added."""
    from torch._inductor.compile_fx import _recursive_post_grad_passes
    from torch._inductor.debug import DebugContext
    from torch._inductor.fx_passes.post_grad import view_to_reshape
    from torch._inductor.graph import GraphLowering
    from torch._inductor.virtualized import V
    from torch.fx.passes.fake_tensor_prop import FakeTensorProp

    for node in graph.graph.nodes:
        if "device" in node.kwargs:
            node.kwargs = {**node.kwargs, "device": torch.device(_WHERE)}
    graph.graph.eliminate_dead_code()
    view_to_reshape(graph)
    graph.recompile()
    on_gpu = []
    for node in graph.graph.nodes:
        if node.op == "placeholder":
            value = node.meta["val"]
            with mode:
                stride = strides.get(node.name, value.stride())
                on_gpu.append(torch.empty_strided(value.shape, stride, dtype=value.dtype, device=_WHERE))
    FakeTensorProp(graph, mode).propagate_dont_convert_inputs(*on_gpu)
    with V.set_fake_mode(mode):
        # of a scatter's copy the passes want the shape alone, and a build without CUDA cannot make it
        with mode, patch.object(torch.Tensor, "copy_", lambda to, *_: to):
            _recursive_post_grad_passes(graph, is_inference=how["is_inference"])
        lowering = GraphLowering(graph, example_inputs=on_gpu, shape_env=mode.shape_env, **how)
        with V.set_graph_handler(lowering), DebugContext():
            lowering.run(*on_gpu)
            lowering.codegen()
            results = next(iter(graph.graph.find_nodes(op="output"))).args[0]
            for node, made in zip(results, lowering.graph_outputs, strict=True) if not how["is_inference"] else ():
                if node is not None:
                    strides[node.name] = tuple(map(int, made.get_stride()))
            return list(_scheduled(lowering.scheduler.nodes))


def _scheduled(nodes: Sequence[Any]) -> Iterator[Made]:
    for node in nodes:
        size = node.get_read_write_buffers_sizes()
        if not size:  # an allocation, or one of several results
            continue
        parts = [str(origin) for part in node.get_nodes() if part.node for origin in part.node.get_origins()]
        yield Made(" ".join(dict.fromkeys(parts)), size, library=node.is_extern())


@contextmanager
def _pretended(device: Device) -> Iterator[None]:
    """Within it torch takes this device for one of the machine's, as far as inductor asks."""
    import torch._dynamo.device_interface as interfaces
    import triton
    from torch._inductor.fx_passes import joint_graph, post_grad
    from torch._inductor.runtime.hints import DeviceProperties
    from triton.backends.compiler import GPUTarget

    major, minor = device.cuda_capability or (8, 0)
    found = SimpleNamespace(
        name=device.name, major=major, minor=minor, multi_processor_count=device.sm_count, warp_size=32,
        max_threads_per_multi_processor=2048, regs_per_multiprocessor=65536, max_threads_per_block=1024,
    )  # fmt: skip
    told = DeviceProperties(
        type="cuda", index=0, cc=10 * major + minor, major=major, multi_processor_count=device.sm_count,
        regs_per_multiprocessor=65536, max_threads_per_multi_processor=2048, warp_size=32,
    )  # fmt: skip
    list(interfaces.get_registered_device_interfaces())  # registers those of torch, before
    interface = interfaces.CudaInterface
    target = SimpleNamespace(get_current_target=lambda: GPUTarget("cuda", told.cc, 32), get_current_device=lambda: 0)
    answers: dict[Any, dict[str, Any]] = {
        torch.cuda: {
            "is_available": lambda: True, "current_device": lambda: 0, "device_count": lambda: 1,
            "get_device_properties": lambda *_: found, "get_device_capability": lambda *_: (major, minor),
        },
        torch.version: {"cuda": "12.8"},
        interface: {
            "is_available": staticmethod(lambda: True), "get_device_properties": staticmethod(lambda *_: found),
            "get_compute_capability": staticmethod(lambda *_: told.cc), "current_device": staticmethod(lambda: 0),
            "raise_if_triton_unavailable": staticmethod(lambda *_: None),
        },
        DeviceProperties: {"create": staticmethod(lambda *_: told)},
        torch._C: {
            "_select_conv_backend": lambda *_, **__: "cudnn", "_conv_determine_backend_memory_format": _cudnn_format,
        },
        joint_graph: {"lazy_init": _for_the_cpu(joint_graph.lazy_init)},
        post_grad: {"lazy_init": _for_the_cpu(post_grad.lazy_init)},
    }  # fmt: skip
    triton.runtime.driver.set_active(target)
    with ExitStack() as stack:
        for place, names in answers.items():
            for name, answer in names.items():
                stack.enter_context(patch.object(place, name, answer, create=True))
        yield


def _cudnn_format(image: torch.Tensor, weight: torch.Tensor, *_: Any) -> torch.memory_format:
    """Channels last where the image or the weight is (ATen, cudnn_conv_suggest_memory_format)."""
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(image.dim())
    given = [t.is_contiguous(memory_format=last) and not t.is_contiguous() for t in (image, weight) if last]
    return last if last and any(given) else torch.contiguous_format


def _for_the_cpu(prepare: Callable[..., Any]) -> Callable[..., Any]:
    """Patterns are the same for all devices, and can be traced on the CPU alone."""
    wants = bool(inspect.signature(prepare).parameters)

    def prepared(*_: Any, **__: Any) -> Any:
        with patch.object(torch.cuda, "is_available", lambda: False):
            return prepare(torch.device("cpu")) if wants else prepare()

    return prepared


def predicted(
    model: torch.nn.Module, inputs: Sequence[torch.Tensor], device: Device, *, training: bool = False
) -> list[Made]:
    """The kernels that are predicted; in training with those of a sum as loss."""
    graph = rk.trace(model, *inputs, mode="training", loss=torch.sum) if training else rk.trace(model, *inputs)
    kernels = (timing.kernel for timing in rk.predict(graph, device, execution="compiled").timings)
    return [Made(k.name, int(k.bytes), library=not k.name.startswith("triton")) for k in kernels]


def main() -> None:
    """Prints both."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="+")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--dtype", default="float16")
    parser.add_argument("--training", action="store_true", help="forward and backward pass")
    parser.add_argument("--list", action="store_true", help="each kernel")
    options = parser.parse_args()
    declare_torchvision_operators()
    import timm

    device, dtype = load_device(_GPU), getattr(torch, options.dtype)
    for name in options.names:
        with torch.device("meta"):
            model = timm.create_model(name).train(options.training).to(dtype)
            images = torch.empty(options.batch, *model.default_cfg["input_size"], dtype=dtype)
        made = {
            "inductor": of_inductor(model, [images], device, training=options.training),
            "predicted": predicted(model, [images], device, training=options.training),
        }
        print(name)
        for who, kernels in made.items():
            fused = [kernel.bytes for kernel in kernels if not kernel.library]
            others = len(kernels) - len(fused)
            print(f"  {who:9}  {len(fused):4} Triton kernels, {sum(fused) / 1e6:10.1f} MB; {others} others")
            for kernel in kernels if options.list else ():
                print(f"    {kernel.bytes / 1e6:10.3f} MB  {kernel.name[:100]}")


if __name__ == "__main__":
    main()
