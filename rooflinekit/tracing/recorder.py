"""Records each operator dispatched below autograd as an `Op` and as a node of a torch.fx graph."""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import MappingProxyType
from typing import Any

import torch
from torch import fx, nn
from torch._higher_order_ops.scan import generic_scan
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from rooflinekit.ir.coverage import Ground
from rooflinekit.ir.op import Op, Phase, Role, TensorSpec, memories
from rooflinekit.tracing.assumed import Assumed, masked_pairs
from rooflinekit.tracing.attention import PACKING, Callers, packed_keys
from rooflinekit.tracing.known import note, on_cpu
from rooflinekit.tracing.memory import OpMemory
from rooflinekit.tracing.surroundings import heed, in_this_thread, standing_in
from rooflinekit.tracing.symbols import Symbols
from rooflinekit.tracing.tensors import (
    DTYPES,
    NODE,
    PRODUCTS,
    SPEC,
    check_formats,
    composite,
    filled_by,
    held,
    is_sparse,
    known_contiguous,
    note_result,
    placed,
    schema_of,
    shared_memory,
    specs_in,
    tensors_in,
    wraps_tensors,
)

_DENSE = torch._C.DispatchKey.CompositeExplicitAutograd


def _cond(assumed: Assumed, function: Any, args: Sequence[Any]) -> Any:
    """The branch that is taken: the first, if nothing else is said."""
    condition, first, second, operands = args
    if isinstance(condition, torch.Tensor):
        condition = bool(assumed.answer("cond", True, Ground.USUAL))
    return (first if condition else second)(*operands)


def _while_loop(assumed: Assumed, function: Any, args: Sequence[Any]) -> Any:
    """Runs as many passes as the user says, or one; the condition is worked out before each and once after the last."""
    condition, body, carried, further = args
    for _ in range(assumed.answer("while_loop", 1, Ground.ONCE)):
        condition(*carried, *further)
        carried = body(*carried, *further)
    condition(*carried, *further)
    return tuple(carried)


#: By the operator's name.
CONTROL: dict[str, Callable[[Assumed, Any, Sequence[Any]], Any]] = {
    "cond": _cond,
    "while_loop": _while_loop,
    # over the first dimension, step by step; what is carried comes before what is kept of each step
    "scan": lambda assumed, function, args: generic_scan(  # type: ignore[no-untyped-call]
        args[0], args[1], args[2], additional_inputs=args[3]
    ),
    # step by step, as torch does outside of compilation
    **dict.fromkeys(
        ("associative_scan", "map_impl"), lambda assumed, function, args: function.py_kernels[_DENSE](*args)
    ),
}


class Lives:
    """Memory, and the last op of forward while Python holds it, and of backward while autograd has saved it.

    In a trace tensors die when they do in a step, for nothing but the model's own code and autograd has hold of them.
    """

    def __init__(self, ops: list[Op], phase: Callable[[], Phase | None]) -> None:
        self.held: dict[str, str] = {}
        self.saved: dict[str, str] = {}
        self._ops, self._phase = ops, phase
        self.watched: list[weakref.ref[torch.Tensor]] = []  # in the order in which they were made

    def watch(self, tensor: torch.Tensor, memory: str) -> None:
        """A tensor that is there now; a view of its memory is one of its own."""
        self.watched.append(weakref.ref(tensor, lambda _: self._until_now(memory)))

    def returned(self, arguments: Any) -> None:
        """A call of a module is over: until now Python has held the tensors that it was given."""
        for leaf in pytree.tree_leaves(arguments):
            known: TensorSpec | None = getattr(leaf, SPEC, None)
            if known is not None:
                self._until_now(known.memory)

    def _until_now(self, memory: str) -> None:
        phase = self._phase()
        if self._ops and phase in (Phase.FORWARD, Phase.BACKWARD):
            (self.held if phase is Phase.FORWARD else self.saved)[memory] = self._ops[-1].name


_DEVICE_OF = torch.ops.prim.device.default
#: What asks for a tensor's sizes and layout, as function transforms do in Python.
_DESCRIBING = frozenset(FunctionalTensor.metadata_fns)
_SLICE = torch.ops.aten.slice.Tensor
_PAD = torch.ops.aten.constant_pad_nd.default
_EMBEDDING = torch.ops.aten.embedding.default
#: Makes a tensor of numbers in the code; of those themselves nothing is kept.
_LITERAL = torch.ops.aten.lift_fresh.default


def _without_memory(args: Sequence[Any]) -> bool:
    """Whether an operator is asked of tensors that are sizes alone, on no device: torch does so to learn a result's."""
    first: Any = next(tensors_in(args), None)
    return isinstance(first, FakeTensor) and first.fake_device.type == "meta"


Specs = tuple[TensorSpec, ...]


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Turns what is dispatched while it is active into ops."""

    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Compilation is switched off for the whole trace: not again for every op."""
        return False

    def __init__(
        self, symbols: Symbols, paths: dict[int, str], assume: Mapping[str, Any], progress: Progress | None = None
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.ops: list[Op] = []
        self.fx = fx.Graph()
        self.phase = Phase.FORWARD
        self.gradients: tuple[TensorSpec, ...] = ()
        self.lives = Lives(self.ops, lambda: None if self._closed else self.phase)
        self.calls = ModuleCalls(paths, progress, self.lives.returned)
        self.assumed = Assumed(assume, symbols, lambda: self.calls.module(self.phase))
        self._callers = Callers()
        self._symbols = symbols
        self._memory = OpMemory(symbols.fake)
        self._recording = True
        self._sparse = False  # whether a sparse tensor was seen
        self._constants: list[torch.Tensor] = []
        self._closed = False

    # --- what is known before the first op -------------------------------------------------------------------

    def name_tensor(self, tensor: torch.Tensor, name: str, role: Role) -> TensorSpec:
        """Makes a tensor known as an input, a weight or a buffer."""
        self._sparse = self._sparse or is_sparse(tensor)
        node = self.fx.placeholder(name) if role is Role.INPUT else self.fx.get_attr(name)
        return self._remember(tensor, name, role, node)

    def kept(self, known: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """What forward has made and something still holds beside those known: a cache of keys and values, say."""
        made = {spec.name for op in self.ops if op.phase is Phase.FORWARD for spec in op.outputs if not spec.storage}
        made -= memories((*self.gradients, *map(self.spec, known)))
        alive = [tensor for reference in self.lives.watched if (tensor := reference()) is not None]
        found = {spec.memory: tensor for tensor in alive if (spec := getattr(tensor, SPEC, None))}
        return [tensor for memory, tensor in found.items() if memory in made]

    def close(self, outputs: Sequence[torch.Tensor]) -> None:
        """Ends the fx graph with its outputs."""
        for tensor in outputs:
            self.spec(tensor)
        self._closed = True
        self.fx.output(tuple(getattr(tensor, NODE) for tensor in outputs))

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Lets ops run without recording them."""
        self._recording = False
        try:
            yield
        finally:
            self._recording = True

    # --- ops -------------------------------------------------------------------------------------------------

    def __torch_dispatch__(
        self,
        function: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if any(map(wraps_tensors, types)):
            return NotImplemented  # it says itself which operators it asks of the tensors inside
        kwargs = kwargs or {}
        if function is _DEVICE_OF:
            return args[0].fake_device if hasattr(args[0], "fake_device") else function(*args)
        if composite(function):  # asked for from within a nested tensor: elsewhere autograd has taken it apart
            with self:
                return function.decompose(*args, **kwargs)
        if not self._recording or on_cpu(function, args) or function in _DESCRIBING or _without_memory(args):
            number = self.assumed.number(function, args, self.phase)
            return function(*args, **kwargs) if number is None else number
        if isinstance(function, torch._ops.OpOverload):
            return self._operator(function, args, kwargs)
        return self._higher_order(function, args, kwargs)

    def _higher_order(self, function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """The result of an operator whose arguments are functions and graphs too, without a schema.

        It is one op of the tensors that it is called with, but for control flow, which runs its functions.
        """
        name = function.name()
        if name in CONTROL:
            with self:
                return CONTROL[name](self.assumed, function, args)
        output = function(*args, **kwargs)
        tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        attrs = masked_pairs(name, args, self.assumed)
        specs = tuple(map(self.spec, tensors))
        node = self.fx.create_node("call_function", function, tuple(map(self._fx_value, tensors)), {}, name=name)
        self._append(node, f"higher_order.{name}", specs, tuple(self._outputs(output, node, tensors)), attrs)
        return output

    def _operator(self, function: torch._ops.OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """The result of an operator, which is recorded."""
        kind, arguments, _ = schema_of(function)
        given = {
            name: args[i] if i < len(args) else kwargs.get(name, default) for i, (name, default) in enumerate(arguments)
        }
        if function in PRODUCTS:
            check_formats(kind, given.values())
        elif function is _EMBEDDING:
            self.assumed.check_rows(*args[:2])
        tensors: list[TensorSpec] = []  # that it reads
        filled = filled_by(function)
        attrs = {name: self._value(value, [] if name in filled else tensors) for name, value in given.items()}
        sparse = self._sparse and any(map(is_sparse, args))
        # where a part ends short of the whole is the model's own doing, not an operator's choice
        with nullcontext() if function is _SLICE else self._symbols.inside_op():
            output = self._decided(function, args, kwargs)
            if output is None:
                output = function(*args, **kwargs) if sparse else self._memory.call(function, args, kwargs, attrs)
        if function is _PAD:
            self._symbols.pads(attrs["pad"])
        note(function, args, output)
        self.assumed.values.follow(function, args, kwargs, output)
        named = self.assumed.named(function, args)
        if named is not None:
            attrs["named"] = self._symbols.size(named)
        if kind in PACKING:
            attrs |= packed_keys(given, self.assumed)
        if sparse:
            attrs["held"] = held(args, self._symbols.size)
        if is_sparse(output):
            self._sparse = True
            note_result(kind.partition(".")[2], args, output)
        self._record(function, args, kwargs, output, attrs, tensors)
        return output

    def _decided(self, function: torch._ops.OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """The result of an operator where numbers decide it; None for every other."""
        number = self.assumed.number(function, args, self.phase)
        if number is not None:
            return number
        made = self.assumed.made(function, args, kwargs)
        return None if made is None else self._memory.result(function, made)

    def _record(
        self,
        function: torch._ops.OpOverload,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        output: Any,
        attrs: dict[str, Any],
        tensors: list[TensorSpec],
    ) -> None:
        kind, arguments, written = schema_of(function)
        if "held" in attrs:
            kind = kind.replace("aten.", "sparse." if attrs["held"] is not None else "sparse_of_unknown_size.")
        if self.phase is Phase.OPTIMIZER and all(not tensor.shape for tensor in tensors):
            return  # step counters, which optimizers keep on the CPU, and marks for the profiler
        node = self.fx.create_node("call_function", function, name=kind.rpartition(".")[2])
        # fx looks through arguments that it is given at once for sizes of torch's: half of its time
        node.args = tuple(map(self._fx_value, args))
        if kwargs:
            node.kwargs = {name: self._fx_value(value) for name, value in kwargs.items()}
        outputs = tuple(self._outputs(output, node, args))
        if not outputs:  # nothing returned: what it wrote to
            outputs = tuple(t for i in written for t in specs_in(attrs[arguments[i][0]]))
        if function is _LITERAL:
            tensors = []
        self._append(node, kind, tuple(tensors), outputs, attrs)

    def _append(self, node: fx.Node, kind: str, inputs: Specs, outputs: Specs, attrs: dict[str, Any]) -> None:
        module = self.calls.module(self.phase)
        node.meta.update(module=module, phase=self.phase.value)
        attrs = {**attrs, **self._callers.attrs(kind, inputs, outputs)}
        self.ops.append(
            Op(
                name=node.name,
                kind=kind,
                module=module,
                phase=self.phase,
                inputs=inputs,
                outputs=outputs,
                attrs=MappingProxyType(attrs),
            )
        )

    def _outputs(self, output: Any, node: fx.Node, args: Sequence[Any]) -> Iterator[TensorSpec]:
        reshaped = torch.Tag.inplace_view in getattr(node.target, "tags", ())
        for place, part in placed(output):
            known: TensorSpec | None = getattr(part, SPEC, None)
            if known is not None and not reshaped:  # written in place
                setattr(part, NODE, node)
                yield known
            else:
                item = node
                for i in place:
                    item = self.fx.call_function(operator.getitem, (item, i))
                yield self._remember(part, ".".join((node.name, *map(str, place))), Role.ACTIVATION, item, args)

    def _remember(
        self, tensor: torch.Tensor, name: str, role: Role, node: fx.Node, args: Sequence[Any] = ()
    ) -> TensorSpec:
        """Notes on the tensor itself what is known of it: a table would keep it alive, and then autograd would copy
        gradients that it else hands over."""
        sizes = self._symbols.size
        shape = tuple(map(sizes, tensor.shape))
        if any(map(self._symbols.unknown, shape)):
            raise self.assumed.unknown_size(shape)
        stride = None if known_contiguous(tensor) else tuple(map(sizes, tensor.stride()))
        spec = TensorSpec(
            name=name,
            shape=shape,
            dtype=DTYPES[tensor.dtype],
            role=role,
            stride=stride,
            storage=shared_memory(tensor, args),
        )
        setattr(tensor, SPEC, spec)
        setattr(tensor, NODE, node)
        self.lives.watch(tensor, spec.memory)
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
            return self._known(self._symbols.size(value))
        if isinstance(value, torch.dtype):
            return DTYPES.get(value, str(value))
        if value is None or isinstance(value, bool | int | float | complex | str):
            return value
        if isinstance(value, torch.SymFloat | torch.SymBool):
            return self._known(self._symbols.expression(value.node.expr))
        return str(value)  # layouts, devices, generators

    def _known(self, size: Any) -> Any:
        """A number that stands in a tensor is a name as others are: no size hangs on it."""
        return str(size) if self._symbols.unknown(size) else size

    def _fx_value(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return getattr(value, NODE)
        if isinstance(value, list | tuple):
            return type(value)(map(self._fx_value, value)) if type(value) in (list, tuple) else tuple(value)
        if isinstance(value, torch.SymInt):
            return self._symbols.size(value)
        return value


# Which module an operator belongs to: the one being called, and in backward the one whose op made autograd's node.


#: Called with the number of modules entered and the path of the newest one.
Progress = Callable[[int, str], None]


class ModuleCalls:
    """Follows the calls of modules, by the `paths` of their identities."""

    def __init__(self, paths: dict[int, str], progress: Progress | None, returned: Callable[[Any], None]) -> None:
        self._returned = returned  # called with the arguments of each call that is over
        self.last = ""  # the path of the module being called, or of the one that failed
        self.around = ""  # what is being run where no module is: a loss
        self._paths = paths
        self._progress = progress
        self._entered = 0
        self._open: list[str] = []  # paths of the modules being called, outermost first
        self._of_node: dict[int, str] = {}  # autograd's sequence number → module of the forward op

    def followed(self) -> AbstractContextManager[None]:
        """Within it, calls of modules are followed; in recomputation during backward too."""
        original = nn.Module.__call__

        def call(module: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
            path = self._paths.get(id(module))
            if path is None:
                output = original(module, *args, **kwargs)
                self._returned((args, kwargs))
                return output
            heed()
            self._entered += 1
            if self._progress is not None:
                self._progress(self._entered, path)
            self._open.append(path)
            self.last = path
            try:
                output = original(module, *args, **kwargs)
                self.last = "".join(self._open[-2:-1])
                return output
            finally:
                self._open.pop()
                self._returned((args, kwargs))

        return standing_in([(nn.Module, "__call__", in_this_thread(original, call))])

    def module(self, phase: Phase) -> str:
        """The path for an operator that is dispatched now."""
        if phase is Phase.OPTIMIZER:
            return ""
        here = self._open[-1] if self._open else ""
        node = torch._C._current_autograd_node()
        if node is not None and not self._open:
            return self._of_node.get(node._sequence_nr(), "")
        # The first op seen at a sequence number is the one whose node got the number before it.
        self._of_node.setdefault(torch._C._autograd._get_sequence_nr() - 1, here)
        return here
