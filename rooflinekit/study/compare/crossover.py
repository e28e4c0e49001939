"""What changes with a size or a bandwidth: where something else limits, arithmetic intensity, rates of attention.

Crossovers are searched on predictions, not on formulas: tiles, caches, launches and the CPU's work are in them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from types import MappingProxyType

import sympy
from scipy.optimize import brentq

from rooflinekit.calibrate.fitting.files import constants_for
from rooflinekit.cost.table import price_all
from rooflinekit.errors import InputError, SizeError, nearest
from rooflinekit.hardware.device import Device
from rooflinekit.hardware.specs import device_of
from rooflinekit.ir import keyed
from rooflinekit.ir.arguments import checked
from rooflinekit.ir.cost import Cost
from rooflinekit.ir.graph import Graph, opened, whole_of
from rooflinekit.ir.op import DType, Math, Op, PricedOp, TensorSpec
from rooflinekit.ir.sizes import evaluator, symbol
from rooflinekit.kernels.attention_backends import BACKENDS, backend_of, backends_of
from rooflinekit.kernels.eager import plain_kernels
from rooflinekit.kernels.kernel import Kernel
from rooflinekit.step.capacity import largest
from rooflinekit.step.labels import REGIME_TERMS
from rooflinekit.step.prediction import Prediction
from rooflinekit.step.variants import BATCH
from rooflinekit.timing.machine import Machine
from rooflinekit.timing.timings import Bound, time_kernels
from rooflinekit.units import format_quantity

_TOKENS, _WIDTH = 2**14, 2**11  # of a batch, and numbers of all heads of a token: as FlashAttention's authors measure

#: Where searches for a size end; a power of 2.
MOST = 2**16
_WIDEST = 64.0  # bandwidths are searched up to so many times the stated one, and down to its part


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeCrossover:
    """The size from which something holds: at `value`, and not at one less; None where it does not up to `MOST`."""

    what: str
    size: str
    value: int | None
    at: Prediction | None  # at this size

    def __str__(self) -> str:
        if self.value is None or self.at is None:
            return f"{self.what}: at no {self.size} up to {MOST}"
        memory = "" if self.at.memory.fits else f", which does not fit the memory of {self.at.machine.name}"
        return f"{self.what}: from {self.size} {self.value} on{memory}"


@dataclass(frozen=True, slots=True, kw_only=True)
class BandwidthCrossover:
    """The DRAM bandwidth, in byte/s, at which a second GPU takes as long as the first; None where none does."""

    first: Prediction
    second: Prediction  # as its specification states it
    bandwidth: float | None
    at: Prediction | None  # the second with this bandwidth

    def __str__(self) -> str:
        first, second = self.first.machine, self.second.machine
        stated = format_quantity(second.bandwidth, "byte/s")
        if self.bandwidth is None:
            always = "slower" if self.second.total_s > self.first.total_s else "faster"
            return f"{second.name} is {always} than {first.name} at any DRAM bandwidth near its own {stated}"
        found = format_quantity(self.bandwidth, "byte/s")
        side = "less" if self.second.total_s > self.first.total_s else "more"
        return f"{second.name} is faster than {first.name} from {found} of DRAM bandwidth on; it has {side}: {stated}"


@checked
def compute_bound_from(
    p: Prediction, size: str = BATCH, *, module: str | None = None, op: str | None = None
) -> SizeCrossover:
    """The smallest batch, or other named size, at which a step, a module or an op is compute-bound.

    Compute-bound as in `Prediction.regime`: more of its time goes to arithmetic at its roof than to traffic, to what
    reaches neither roof, and to waits. Sizes are doubled until it holds, and halved from there; where it comes and
    goes, as tiles fill, it is the first such place that this finds. Raises InputError for an unknown module or op, and
    SizeError for an unknown size.
    """
    name, chosen = part_of(p.graph, module=module, op=op)
    names = {priced.op.name for priced in chosen}
    whole_step = module is None and op is None

    def belongs(kernel: Kernel) -> bool:
        return kernel.name.partition(":")[0] in names if module is None else is_within(kernel.module, module)

    if not any(belongs(timing.kernel) for timing in p.timings):
        raise InputError(
            f"{name} runs no kernel of its own: it is a view, or fused with others ({p.execution.backend})"
        )

    def holds(found: Prediction) -> bool:
        return (found.regime if whole_step else _regime(found, belongs)) == "compute"

    return _first(p, size, f"{name} is compute-bound on {p.machine.name}", holds)


def _regime(p: Prediction, belongs: Callable[[Kernel], bool]) -> Bound:
    """The regime of some of the kernels: where most of their time goes."""
    spans = [span for span in p.spans if belongs(span.timing.kernel)]
    seconds = dict.fromkeys(REGIME_TERMS, 0.0) | keyed.added(span.timing.parts() for span in spans)
    seconds["overhead"] += sum(span.waited_s for span in spans)
    return max(seconds, key=seconds.__getitem__)


@checked
def gpu_bound_from(p: Prediction, size: str = BATCH) -> SizeCrossover:
    """The smallest batch, or other named size, from which the CPU no longer limits.

    That is where the kernels take at least as long as the CPU needs to issue them. Searched as in
    `compute_bound_from`. Raises SizeError for an unknown size.
    """
    what = f"the kernels on {p.machine.name} take longer than {p.host.name} to issue them"
    return _first(p, size, what, lambda found: found.gpu_s >= found.cpu_s)


def _first(p: Prediction, size: str, what: str, holds: Callable[[Prediction], bool]) -> SizeCrossover:
    whole, others = opened(p.graph, size)

    def at(value: int) -> Prediction:
        return p.again(graph=whole.at(**others, **{size: value}))

    below = largest(lambda value: not holds(at(value)), MOST)
    if below == MOST:
        return SizeCrossover(what=what, size=size, value=None, at=None)
    return SizeCrossover(what=what, size=size, value=below + 1, at=at(below + 1))


@checked
def bandwidth_to_match(p: Prediction, gpu: str | Path | Device) -> BandwidthCrossover:
    """The DRAM bandwidth at which another GPU would take as long as this step does: with more it is faster.

    The other GPU keeps all else: peaks, caches, the constants fitted for it. Searched between a 64th and 64 times its
    stated bandwidth. Raises InputError for the GPU that the step is on, DeviceNotFoundError or SpecError.
    """
    device = device_of(gpu)
    if device == p.machine.device:
        raise InputError(f"{device.name} is the GPU of the step: name another one")
    constants = constants_for(device)

    def at(bandwidth: float) -> Prediction:
        changed = device.replace(dram={"bandwidth": bandwidth})
        return p.again(machine=Machine.of(changed, constants, burst=p.machine.burst))

    def behind(exponent: float) -> float:
        return math.log(at(stated * math.exp(exponent)).total_s / p.total_s)

    stated, end = device.dram.bandwidth, math.log(_WIDEST)
    second = at(stated)
    if behind(-end) * behind(end) > 0:
        return BandwidthCrossover(first=p, second=second, bandwidth=None, at=None)
    bandwidth = stated * math.exp(brentq(behind, -end, end, xtol=1e-12, rtol=1e-12))
    return BandwidthCrossover(first=p, second=second, bandwidth=bandwidth, at=at(bandwidth))


@dataclass(frozen=True, slots=True, kw_only=True)
class Intensity:
    """FLOP by compulsory bytes of a workload, or of the part of it that `name` says, in the sizes still open."""

    name: str
    flop: sympy.Expr
    bytes: sympy.Expr

    @property
    def formula(self) -> sympy.Expr:
        """FLOP/byte, with common factors cancelled where both are polynomials."""
        if not self._rational:
            return self.flop / self.bytes
        return sympy.factor(sympy.cancel(self.flop / self.bytes))

    @property
    def _rational(self) -> bool:
        # Rounded sizes stand inside floor, ceiling or Min, which are no polynomials.
        symbols = sorted(self.flop.free_symbols | self.bytes.free_symbols, key=str)
        return all(part.is_polynomial(*symbols) for part in (self.flop, self.bytes))

    @property
    def latex(self) -> str:
        """The formula as LaTeX, the sizes' names upright."""
        names = {free: rf"\mathrm{{{str(free).replace('_', chr(92) + '_')}}}" for free in self.formula.free_symbols}
        return str(sympy.latex(self.formula, symbol_names=names))

    def at(self, **sizes: int) -> float:
        """FLOP/byte at these sizes. Raises SizeError while one is open."""
        at = evaluator(sizes)
        flop, moved = (sympy.sympify(at(part)) for part in (self.flop, self.bytes))
        missing = sorted(str(free) for free in flop.free_symbols | moved.free_symbols)
        if missing:
            raise SizeError(f"no number is given for size {missing[0]!r}: add {missing[0]}=…")
        return float(flop / moved)

    def limit(self, size: str) -> sympy.Expr:
        """What it tends to as this size grows without end, in the others. Raises InputError for what has no limit."""
        formula, real = self._in(size)
        return sympy.factor(sympy.limit(formula, real, sympy.oo))

    def reaching(self, value: float | sympy.Expr, size: str) -> tuple[sympy.Expr, ...]:
        """The values of a size at which it is `value`, such as a ridge point, in the other sizes; none for never.

        Values are real, not rounded to whole sizes. Raises InputError where the formula is not polynomial.
        """
        formula, real = self._in(size)
        # A float would turn exact roots into long decimals.
        wanted = sympy.nsimplify(value, rational=True)
        return tuple(sympy.solve(sympy.numer(sympy.together(formula - wanted)), real))

    def _in(self, size: str) -> tuple[sympy.Expr, sympy.Dummy]:
        """The formula in a positive number for this size, and that number."""
        if symbol(size) not in self.formula.free_symbols:
            has = ", ".join(sorted(map(str, self.formula.free_symbols))) or "no size"
            raise InputError(f"the intensity of {self.name} does not depend on {size!r}: it depends on {has}")
        if not self._rational:
            raise InputError(f"the intensity of {self.name} is no quotient of polynomials: {self.formula}")
        real = sympy.Dummy(size, positive=True)
        return self.formula.subs(symbol(size), real), real

    def __str__(self) -> str:
        return f"{self.name}: {self.formula} FLOP/byte"


@checked
def intensity(graph: Graph, *, module: str | None = None, op: str | None = None) -> Intensity:
    """FLOP by bytes of the whole workload, of a module with all below it, or of one op by its name.

    The formula holds the sizes as they were traced: open, also where the graph is at numbers. Counts are those of
    `Graph.flop` and `Graph.bytes`. Raises InputError for a name that is not there, and for what moves nothing.

    >>> intensity(graph, module="blocks.0").latex  # doctest: +SKIP
    """
    whole = whole_of(graph)
    name, chosen = part_of(whole, module=module, op=op)
    cost = sum((cost for priced in chosen for cost in priced.costs), Cost())
    if cost.bytes == 0:
        raise InputError(f"{name} moves no bytes, so that it has no intensity")
    return Intensity(name=name, flop=sympy.expand(cost.flop), bytes=sympy.expand(cost.bytes))


def part_of(graph: Graph, *, module: str | None = None, op: str | None = None) -> tuple[str, tuple[PricedOp, ...]]:
    """What a part of a graph is called, and its ops. Raises InputError for a name that is not there, and for both."""
    if module is not None and op is not None:
        raise InputError("name a module or an op, not both")
    if not module and op is None:
        return graph.name, graph.priced
    what, name = ("module", module) if module else ("op", op or "")
    known = [priced.op.module if module else priced.op.name for priced in graph.priced]
    belongs = [is_within(own, name) if module else own == name for own in known]
    if not any(belongs):
        raise InputError(f"{graph.name} has no {what} {name!r}{nearest(name, sorted(set(known)))}")
    return name, tuple(compress(graph.priced, belongs))


def is_within(path: str, module: str) -> bool:
    """Whether a module path is this module or below it; "" is the root.

    >>> is_within("layer1.0.conv1", "layer1"), is_within("layer10", "layer1")
    (True, False)
    """
    return not module or path == module or path.startswith(f"{module}.")


_KIND = "aten._scaled_dot_product_flash_attention"
LENGTHS = tuple(2**n for n in range(9, 15))


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionRates:
    """FLOP/s in fp16 by kernel and length, of batches of 16,384 tokens with heads of 2048 numbers in all."""

    device: str
    head_dim: int
    causal: bool
    lengths: tuple[int, ...]
    forward: Mapping[str, tuple[float, ...]]  # by the kernel's name
    backward: Mapping[str, tuple[float, ...]]
    chosen: str  # name of what PyTorch runs by itself
    peak: float  # FLOP/s that the datasheet states


def attention_rates(
    subject: Machine | Device, *, head_dim: int = 128, causal: bool = False, lengths: Sequence[int] = LENGTHS
) -> AttentionRates:
    """How fast each kernel of attention is that a program may call on this GPU, without a mask, by its kernels' time.

    subject: a Machine, or a Device with its own constants. lengths: of sequences, each a part of 16,384 tokens.
    FLOP are those of two products in the forward pass and five in the gradient, under a causal mask of the pairs left.
    Raises InputError for a GPU of which no kernel is known, and for heads or lengths that divide no such batch.
    """
    if head_dim < 1 or _WIDTH % head_dim or any(length < 1 or _TOKENS % length for length in lengths):
        raise InputError(
            f"attention: expected heads that divide {_WIDTH} numbers and lengths that divide {_TOKENS} tokens; "
            f"got {head_dim} and {', '.join(map(str, lengths))}"
        )
    machine = subject if isinstance(subject, Machine) else Machine.of(subject, constants_for(subject))
    device, plain = machine.device, _op(lengths[0], head_dim, causal=causal)
    names = tuple(name for name in backends_of(plain, device, None) if name != "math")
    if not names:
        raise InputError(f"attention on {device.name}: no kernel is known by name; name a GPU such as an A100")

    def rates(name: str, direction: str) -> Iterator[float]:
        for priced in price_all([_op(one, head_dim, direction, causal=causal, backend=name) for one in lengths]):
            timings = time_kernels(plain_kernels(priced, None, device), machine)
            yield float(priced.costs[0].matrix_flop) / sum(timing.total_s for timing in timings)

    forward, backward = (
        MappingProxyType({BACKENDS[name].name: tuple(rates(name, direction)) for name in names})
        for direction in ("", "_backward")
    )
    return AttentionRates(
        device=device.short_title, head_dim=head_dim, causal=causal, lengths=tuple(lengths), forward=forward,
        backward=backward, chosen=backend_of(plain, device).name, peak=device.peak(Math.FP16),
    )  # fmt: skip


def _op(length: int, head_dim: int, direction: str = "", *, causal: bool, backend: str | None = None) -> Op:
    shape = (_TOKENS // length, _WIDTH // head_dim, length, head_dim)
    q, k, v, out, grad = (TensorSpec(name=n, shape=shape, dtype=DType.FLOAT16) for n in ("q", "k", "v", "out", "grad"))
    sums = TensorSpec(name="sums", shape=shape[:-1], dtype=DType.FLOAT32)
    gradients = tuple(TensorSpec(name=f"d{one.name}", shape=shape, dtype=one.dtype) for one in (q, k, v))
    inputs, outputs = ((grad, q, k, v, out, sums), gradients) if direction else ((q, k, v), (out, sums))
    attrs = {"is_causal": causal, "backend": backend}
    return Op(name="attention", kind=f"{_KIND}{direction}", inputs=inputs, outputs=outputs, attrs=attrs)
