"""Records each operator dispatched below autograd as an `Op` and as a node of a torch.fx graph."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from rooflinekit.ir.op import Op, Phase
from rooflinekit.ir.tensor import DType, Role, TensorSpec
from rooflinekit.tracing.memory import OpMemory
from rooflinekit.tracing.symbols import Symbols
from rooflinekit.tracing.tensors import NODE, SPEC, known_contiguous, quiet_attributes, shared_memory, specs_in

_DEVICE_OF = torch.ops.prim.device.default
_DTYPES = {getattr(torch, dtype.value): dtype for dtype in DType if hasattr(torch, dtype.value)}

#: Called with the number of modules entered and the path of the newest one.
Progress = Callable[[int, str], None]


@functools.cache
def _schema(function: torch._ops.OpOverload) -> tuple[str, tuple[tuple[str, Any], ...], tuple[int, ...]]:
    """Kind of an operator, its arguments' names with their defaults, and which of them it writes to."""
    schema = function._schema
    arguments = tuple((a.name, a.default_value if a.has_default_value() else None) for a in schema.arguments)
    written = tuple(i for i, a in enumerate(schema.arguments) if a.alias_info and a.alias_info.is_write)
    return schema.name.replace("::", "."), arguments, written


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Turns what is dispatched while it is active into ops."""

    supports_higher_order_operators = True

    def __init__(self, symbols: Symbols, paths: dict[int, str], progress: Progress | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.ops: list[Op] = []
        self.fx = fx.Graph()
        self.phase = Phase.FORWARD
        self.gradients: tuple[TensorSpec, ...] = ()
        self.modules: list[str] = []  # paths of the modules being called, outermost first
        self.last_module = ""  # for the report of a failure
        self._symbols = symbols
        self._memory = OpMemory(symbols.fake)
        self._paths = paths
        self._progress = progress
        self._entered = 0
        self._recording = True
        self._constants: list[torch.Tensor] = []
        self._module_of_node: dict[int, str] = {}  # autograd's sequence number → module of the forward op

    # --- what is known before the first op -------------------------------------------------------------------

    def name_tensor(self, tensor: torch.Tensor, name: str, role: Role) -> TensorSpec:
        """Makes a tensor known as an input, a weight or a buffer."""
        if role is Role.INPUT:
            node = self.fx.placeholder(name)
        else:
            with quiet_attributes():
                node = self.fx.get_attr(name)
        return self._remember(tensor, name, role, node)

    def close(self, outputs: Sequence[torch.Tensor]) -> None:
        """Ends the fx graph with its outputs."""
        for tensor in outputs:
            self.spec(tensor)
        self.fx.output(tuple(getattr(tensor, NODE) for tensor in outputs))

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Lets ops run without recording them."""
        self._recording = False
        try:
            yield
        finally:
            self._recording = True

    # --- modules ---------------------------------------------------------------------------------------------

    @contextmanager
    def following_modules(self) -> Iterator[None]:
        """Keeps `modules` up to date while modules are called; in recomputation during backward too."""
        original = nn.Module.__call__

        def call(module: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
            path = self._paths.get(id(module))
            if path is None:
                return original(module, *args, **kwargs)
            self._entered += 1
            if self._progress is not None:
                self._progress(self._entered, path)
            self.modules.append(path)
            self.last_module = path
            try:
                return original(module, *args, **kwargs)
            finally:
                self.modules.pop()

        nn.Module.__call__ = call  # type: ignore[method-assign]
        try:
            yield
        finally:
            nn.Module.__call__ = original  # type: ignore[method-assign]

    def _module(self) -> str:
        if self.phase is Phase.OPTIMIZER:
            return ""
        here = self.modules[-1] if self.modules else ""
        node = torch._C._current_autograd_node()
        if node is not None and not self.modules:
            # In backward: the module whose forward op made this node.
            return self._module_of_node.get(node._sequence_nr(), "")
        # The first op seen at a sequence number is the one whose node got the number before it.
        self._module_of_node.setdefault(torch._C._autograd._get_sequence_nr() - 1, here)
        return here

    # --- ops -------------------------------------------------------------------------------------------------

    def __torch_dispatch__(
        self,
        function: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if function is _DEVICE_OF:
            return args[0].fake_device if hasattr(args[0], "fake_device") else function(*args)
        if not self._recording:
            return function(*args, **kwargs)
        if not isinstance(function, torch._ops.OpOverload):
            # A higher-order operator: its arguments are functions and graphs too, and have no schema.
            output = function(*args, **kwargs)
            flat = pytree.tree_leaves((args, kwargs))
            self._record_whole(function, [leaf for leaf in flat if isinstance(leaf, torch.Tensor)], output)
            return output
        _, arguments, _ = _schema(function)
        tensors: list[TensorSpec] = []
        attrs = {
            name: self._value(args[i] if i < len(args) else kwargs.get(name, default), tensors)
            for i, (name, default) in enumerate(arguments)
        }
        with self._symbols.inside_op():
            output = self._memory.call(function, args, kwargs, attrs)
        self._record(function, args, kwargs, output, attrs, tensors)
        return output

    def _record(
        self,
        function: torch._ops.OpOverload,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        output: Any,
        attrs: dict[str, Any],
        tensors: list[TensorSpec],
    ) -> None:
        kind, arguments, written = _schema(function)
        if self.phase is Phase.OPTIMIZER and all(not tensor.shape for tensor in tensors):
            return  # step counters, which optimizers keep on the CPU, and marks for the profiler
        node = self.fx.create_node(
            "call_function",
            function,
            tuple(self._fx_value(a) for a in args),
            {name: self._fx_value(value) for name, value in kwargs.items()},
            name=kind.rpartition(".")[2],
        )
        module = self._module()
        node.meta.update(module=module, phase=self.phase.value)
        outputs = tuple(self._outputs(output, node, args))
        if not outputs:  # nothing returned: what it wrote to
            outputs = tuple(t for i in written for t in specs_in(attrs[arguments[i][0]]))
        self.ops.append(
            Op(
                name=node.name,
                kind=kind,
                module=module,
                phase=self.phase,
                inputs=tuple(tensors),
                outputs=outputs,
                attrs=MappingProxyType(attrs),
            )
        )

    def _record_whole(self, function: Any, tensors: Sequence[torch.Tensor], output: Any) -> None:
        """A higher-order operator as one op of the tensors that it is called with."""
        specs = tuple(map(self.spec, tensors))
        name = function.name()
        node = self.fx.create_node("call_function", function, tuple(map(self._fx_value, tensors)), {}, name=name)
        module = self._module()
        node.meta.update(module=module, phase=self.phase.value)
        self.ops.append(
            Op(
                name=node.name,
                kind=f"higher_order.{name}",
                module=module,
                phase=self.phase,
                inputs=specs,
                outputs=tuple(self._outputs(output, node, tensors)),
            )
        )

    def _outputs(self, output: Any, node: fx.Node, args: Sequence[Any]) -> Iterator[TensorSpec]:
        reshaped = torch.Tag.inplace_view in getattr(node.target, "tags", ())
        single = isinstance(output, torch.Tensor)
        parts = (output,) if single else output if isinstance(output, list | tuple) else ()
        for i, part in enumerate(parts):
            if not isinstance(part, torch.Tensor):
                continue
            known: TensorSpec | None = getattr(part, SPEC, None)
            if known is not None and not reshaped:  # written in place
                setattr(part, NODE, node)
                yield known
            else:
                item = node if single else self.fx.call_function(operator.getitem, (node, i))
                name = node.name if single else f"{node.name}.{i}"
                yield self._remember(part, name, Role.ACTIVATION, item, args)

    def _remember(
        self, tensor: torch.Tensor, name: str, role: Role, node: fx.Node, args: Sequence[Any] = ()
    ) -> TensorSpec:
        """Notes on the tensor itself what is known of it: a table would keep it alive, and then autograd would copy
        gradients that it else hands over."""
        sizes = self._symbols.size
        stride = None if known_contiguous(tensor) else tuple(map(sizes, tensor.stride()))
        spec = TensorSpec(
            name=name,
            shape=tuple(map(sizes, tensor.shape)),
            dtype=_DTYPES[tensor.dtype],
            role=role,
            stride=stride,
            storage=shared_memory(tensor, args),
        )
        setattr(tensor, SPEC, spec)
        setattr(tensor, NODE, node)
        return spec

    def spec(self, tensor: torch.Tensor) -> TensorSpec:
        """The record of a tensor; one that was not seen before is a constant of the model."""
        known: TensorSpec | None = getattr(tensor, SPEC, None)
        if known is None:
            self._constants.append(tensor)
            # The optimizer's first step is not recorded: what it made is met here.
            state = self.phase is Phase.OPTIMIZER
            name = f"{'state' if state else 'constant'}_{len(self._constants)}"
            known = self.name_tensor(tensor, name, Role.STATE if state else Role.BUFFER)
        return known

    def _value(self, value: Any, tensors: list[TensorSpec]) -> Any:
        """An argument as it stands in `Op.attrs`; tensors found on the way are appended."""
        if isinstance(value, torch.Tensor):
            spec = self.spec(value)
            tensors.append(spec)
            return spec
        if isinstance(value, list | tuple):
            return tuple(self._value(item, tensors) for item in value)
        if isinstance(value, torch.SymInt):
            return self._symbols.size(value)
        if isinstance(value, torch.dtype):
            return _DTYPES.get(value, str(value))
        if value is None or isinstance(value, bool | int | float | complex | str):
            return value
        if isinstance(value, torch.SymFloat | torch.SymBool):
            return self._symbols.expression(value.node.expr)
        return str(value)  # layouts, devices, generators

    def _fx_value(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return getattr(value, NODE)
        if isinstance(value, list | tuple):
            return type(value)(map(self._fx_value, value)) if type(value) in (list, tuple) else tuple(value)
        if isinstance(value, torch.SymInt):
            return self._symbols.size(value)
        return value
