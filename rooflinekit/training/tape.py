"""Ops of a training step, written down as autograd would run them: forward, and each one's backward in reverse."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from rooflinekit.ir.op import DType, Op, Phase, Role, TensorSpec


@dataclass(slots=True)
class Tape:
    """The ops so far. `module` and `phase` stand in those that follow."""

    dtype: DType
    ops: list[Op] = field(default_factory=list)
    weights: dict[str, TensorSpec] = field(default_factory=dict)
    main: dict[str, TensorSpec] = field(default_factory=dict)  # gradients by their weight's name
    module: str = ""
    phase: Phase = Phase.FORWARD
    _back: list[tuple[str, Callable[[], None]]] = field(default_factory=list)
    parts: set[str] = field(default_factory=set)  # names of views with gradients of their own
    _gradients: dict[str, TensorSpec] = field(default_factory=dict)  # of activations, by their memory

    def run(self, kind: str, inputs: tuple[TensorSpec, ...], *outputs: TensorSpec, **attrs: Any) -> TensorSpec:
        """One more op; its first output is handed on."""
        name = f"{kind.rpartition('.')[2]}_{len(self.ops)}"
        self.ops.append(
            Op(
                name=name, kind=kind, module=self.module, phase=self.phase, inputs=inputs, outputs=outputs,
                attrs=MappingProxyType(attrs),
            )
        )  # fmt: skip
        return outputs[0]

    def new(self, *shape: int, dtype: DType | None = None, of: TensorSpec | None = None) -> TensorSpec:
        """What an op makes; `of` another tensor's memory where it is a view of it."""
        name = f"t{len(self.ops)}" + (f".{len(shape)}" if of is not None else "")
        storage = "" if of is None else of.memory
        return TensorSpec(name=name, shape=shape, dtype=dtype or (of.dtype if of else self.dtype), storage=storage)

    def view(self, x: TensorSpec, *shape: int, calls: int = 1) -> TensorSpec:
        """The same numbers in another shape, by so many calls, which launch nothing."""
        for k in range(calls):
            seen = TensorSpec(name=f"v{len(self.ops)}.{k}", shape=shape, dtype=x.dtype, storage=x.memory, role=x.role)
            self.run("aten.view", (x,), seen)
        return seen

    def pointwise(
        self, inputs: tuple[TensorSpec, ...], *outputs: TensorSpec, vector: int = 1, special: int = 0
    ) -> TensorSpec:
        """A kernel that goes over its elements once, with so many operations each."""
        return self.run("training.pointwise", inputs, *outputs, vector=vector, special=special)

    def weight(self, name: str, *shape: int, main: DType | None = None) -> TensorSpec:
        """A weight, once for all ops that use it, and its gradient in `main` or the format of the weights."""
        full = f"{self.module}.{name}" if self.module else name
        if full not in self.weights:
            self.weights[full] = TensorSpec(name=full, shape=shape, dtype=self.dtype, role=Role.WEIGHT)
            self.main[full] = TensorSpec(
                name=f"{full}.grad", shape=shape, dtype=main or self.dtype, role=Role.GRADIENT
            )  # fmt: skip
        return self.weights[full]

    # --- backward --------------------------------------------------------------------------------------------

    def later(self, step: Callable[[], None]) -> None:
        """To be run when backward comes here."""
        self._back.append((self.module, step))

    def gradient(self, x: TensorSpec) -> TensorSpec:
        """The gradient of an activation, as what follows it has left it; in the shape of x."""
        found = self._gradients[self._key(x)]
        return TensorSpec(name=f"{found.name}.g", shape=x.shape, dtype=found.dtype, storage=found.memory)

    def give(self, x: TensorSpec, gradient: TensorSpec) -> None:
        """A gradient of x; a second one is added to the first, as autograd does."""
        before = self._gradients.get(self._key(x))
        if before is None:
            self._gradients[self._key(x)] = gradient
            return
        shape = gradient.shape
        old = TensorSpec(name=before.name, shape=shape, dtype=before.dtype, storage=before.memory)
        self._gradients[self._key(x)] = self.run("aten.add", (old, gradient), self.new(*map(int, shape)), alpha=1)

    def _key(self, x: TensorSpec) -> str:
        return x.name if x.name in self.parts else x.memory

    def backward(self) -> None:
        """All of backward."""
        self.phase = Phase.BACKWARD
        while self._back:
            self.module, step = self._back.pop()
            step()
