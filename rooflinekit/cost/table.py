"""The rule table: which function prices which op."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, Literal, TypeAlias

from rooflinekit.errors import DuplicateRuleError, InputError, UnknownOpError, nearest
from rooflinekit.files import plugins
from rooflinekit.ir.arguments import checked
from rooflinekit.ir.cost import Cost
from rooflinekit.ir.op import ADDED, Basis, Family, Op, PricedOp, TensorSpec
from rooflinekit.ir.sizes import Size, product, shown, total

#: A rule gives the cost of an op: one `Cost`, or one for each kernel that eager execution launches.
Rule: TypeAlias = Callable[[Op], Cost | Sequence[Cost]]

#: Numbers that tell a rule from others of its family, or a rule of its own, and what is counted.
Row: TypeAlias = tuple[int | str | Rule, ...]

GROUP = "rooflinekit.rules"

_RULES: dict[str, Rule] = {}
_TIMED_AS: dict[str, Family] = {}
_FREE: set[str] = set()


def normalized(kind: str) -> str:
    """The key of a kind in the table: `mylib::swiglu` and `mylib.swiglu` are the same op.

    >>> normalized("mylib::swiglu")
    'mylib.swiglu'
    """
    return kind.strip().replace("::", ".")


@checked
def rule(*kinds: str, timed_as: str | None = None, override: bool = False) -> Callable[[Rule], Rule]:
    """Decorator: the function prices ops of these kinds (`aten.mm`, `mylib.swiglu`).

    timed_as: the family whose kernels theirs behave like, such as "attention", "normalization" or "movement" (a value
    of `Family`). Left out they are elementwise. What multiplies matrices is timed as a product all the same, but for
    convolutions, attention and recurrent layers.

    Raises DuplicateRuleError where a rule exists, unless `override` is set, and InputError for an unknown family and
    for what is no kind or no function.
    """
    if not kinds or "" in kinds:
        raise InputError(f"rule: expected kinds of ops, such as 'aten.mm'; got {shown(kinds)}")
    if timed_as not in (None, *Family):
        raise InputError(f"timed_as: expected one of {', '.join(Family)}; got {shown(timed_as)}")

    def register(function: Rule) -> Rule:
        if not callable(function):
            raise InputError(f"rule of {', '.join(kinds)}: expected a function of an op; got {shown(function)}")
        keys = tuple(map(normalized, kinds))
        for kind in keys:  # all of them before the first is registered
            if not override and (kind in _RULES or kind in _FREE):
                first = _RULES.get(kind)
                where = f"{first.__module__}.{getattr(first, '__name__', first)}" if first else "registered as free"
                raise DuplicateRuleError(f"op {kind!r} has a rule already ({where}); pass override=True to replace it")
        for kind in keys:
            _FREE.discard(kind)
            _RULES[kind] = function
            _TIMED_AS[kind] = Family(timed_as or Family.ELEMENTWISE)
        return function

    return register


def free(*kinds: str) -> None:
    """Registers ops that launch nothing on the device: views and bookkeeping, each by name."""
    for kind in map(normalized, kinds):
        if kind in _RULES or kind in _FREE:
            raise DuplicateRuleError(f"op {kind!r} has a rule already")
        _FREE.add(kind)


def aten(names: str) -> tuple[str, ...]:
    """Kinds of ops, separated by spaces; a name without a namespace is ATen's.

    >>> aten("mm mylib.mm")
    ('aten.mm', 'mylib.mm')
    """
    return tuple(name if "." in name else f"aten.{name}" for name in names.split())


def family(
    cost: Callable[..., Cost | Sequence[Cost]], rows: Mapping[str, Row], *, each: str = "output element",
    timed_as: str | None = None,
) -> None:  # fmt: skip
    """Registers rules that differ in numbers: by the names of ops, `cost` of the op and the numbers of a row.

    A row ends with what is counted. Of one without, the numbers are the vector FLOP and the special functions of
    `each` element. A row that begins with a function has that for its cost.
    """
    module = sys._getframe(1).f_globals["__name__"]  # whose rules they are
    for names, row in rows.items():
        numbers = [number for number in row if isinstance(number, int)]
        own = next(filter(callable, row), cost)

        def price(op: Op, own: Any = own, numbers: Sequence[int] = numbers) -> Cost | Sequence[Cost]:
            return own(op, *numbers)  # type: ignore[no-any-return]

        kinds = aten(names)
        price.__doc__ = next((text for text in row if isinstance(text, str)), "") or an_element(*numbers, each=each)
        price.__module__, price.__name__ = module, kinds[0].rpartition(".")[2]
        rule(*kinds, timed_as=timed_as)(price)


def an_element(vector: int, special: int = 0, *, each: str = "output element") -> str:
    """What a rule of constant work says of itself.

    >>> an_element(2, 1)
    '2 and 1 special function an output element.'
    """
    functions = f"{special} special function{'s' * (special > 1)}"
    counted = " and ".join([str(vector)] * bool(vector) + [functions] * bool(special))
    return f"{counted} an {each}." if counted else "Traffic alone."


def work(n: Size, vector: int = 0, special: int = 0) -> Cost:
    """This many vector FLOP and special functions for each of n elements."""
    return Cost(vector_flop=product((vector, n)), special_flop=product((special, n)))


def reads(tensors: Iterable[TensorSpec]) -> Cost:
    """Traffic of reading each tensor once, also where it is passed twice."""
    distinct = {tensor.name: tensor for tensor in tensors}
    return Cost(read_bytes=total(t.bytes for t in distinct.values()))


def writes(tensors: Iterable[TensorSpec]) -> Cost:
    """Traffic of writing each tensor once."""
    return Cost(write_bytes=total(t.bytes for t in tensors))


def traffic(op: Op) -> Cost:
    """Compulsory traffic: every input read once, every output written once."""
    return reads(op.inputs) + writes(op.outputs)


def per_input(op: Op, vector: int = 0, special: int = 0) -> Cost:
    """This work for each element of the first input, and the op's traffic."""
    return work(op.inputs[0].numel, vector, special) + traffic(op)


def per_output(op: Op, vector: int = 0, special: int = 0) -> Cost:
    """This work for each element of the first output, and the op's traffic."""
    return work(op.outputs[0].numel, vector, special) + traffic(op)


def dense_bytes(tensor: TensorSpec) -> Size:
    """Bytes of a tensor if each element had memory of its own."""
    return product((tensor.numel, tensor.dtype.itemsize))


def gradients(op: Op, kernels: Iterable[tuple[Cost, Iterable[TensorSpec]]]) -> list[Cost]:
    """The kernels for those gradients that are wanted, by `output_mask`: of each its work and what it reads."""
    results = iter(op.outputs)
    wanted = zip(kernels, op.attrs["output_mask"], strict=True)
    return [cost + reads(read) + writes((next(results),)) for (cost, read), asked in wanted if asked]


def sweep(label: str, x: TensorSpec, *, reading: int = 1, writing: int = 1, vector: int = 0, special: int = 0) -> Cost:
    """A kernel among several of one op that goes over all elements of x: so many of x's size are read and written."""
    each = dense_bytes(x)
    moved = Cost(read_bytes=product((reading, each)), write_bytes=product((writing, each)), label=label)
    return moved + work(x.numel, vector, special)


def price(
    op: Op, rules: Mapping[str, Rule] | None = None, on_unknown: Literal["traffic", "raise"] = "traffic"
) -> PricedOp:
    """The op with its cost. `rules` (by kind) take precedence over the table.

    An op without a rule costs its traffic and one FLOP an output element, and says so in its `basis`; with
    `on_unknown="raise"` it raises UnknownOpError.
    """
    kind = normalized(op.kind)
    own, plain = rules or {}, kind.removesuffix("_")  # an in-place op costs what the plain one does
    found = own.get(kind) or _RULES.get(kind) or own.get(plain) or _RULES.get(plain)
    if found is not None:
        try:
            cost = found(op)
        except InputError as error:
            raise InputError(f"rule of {kind!r}: {error}") from error
        costs = tuple(cost) if isinstance(cost, Iterable) else (cost,)
        if not all(isinstance(one, Cost) for one in costs):
            raise InputError(f"rule of {kind!r}: expected a Cost, or one for each kernel; got {shown(cost)}")
        return PricedOp(op=op, costs=costs, basis=Basis.RULE, timed_as=_family(kind, costs))
    if kind in _FREE or op.kind.startswith(ADDED):
        return PricedOp(op=op, costs=(), basis=Basis.FREE)
    if on_unknown == "raise":
        raise _unknown(op, kind)
    guessed = Cost(vector_flop=total(t.numel for t in op.outputs)) + traffic(op)
    return PricedOp(op=op, costs=(guessed,), basis=Basis.DEFAULT)


#: Families of their own, though they multiply.
_OF_PRODUCTS = (Family.CONVOLUTION, Family.ATTENTION, Family.RECURRENCE)


def _family(kind: str, costs: Sequence[Cost]) -> Family:
    """What an op is timed as, by its rule and by what it multiplies."""
    found = _TIMED_AS.get(kind) or _TIMED_AS.get(kind.removesuffix("_")) or Family.ELEMENTWISE
    return Family.MATMUL if found not in _OF_PRODUCTS and any(cost.gemms for cost in costs) else found


def price_all(
    ops: Iterable[Op],
    rules: Mapping[str, Rule] | None = None,
    on_unknown: Literal["traffic", "raise"] = "traffic",
) -> tuple[PricedOp, ...]:
    """Every op with its cost, equal ones priced once; plug-ins' rules count. Raises PluginError for a broken one."""
    load_rules()
    own = {normalized(kind): function for kind, function in (rules or {}).items()}
    memory: dict[tuple[object, ...], PricedOp] = {}
    priced = []
    for op in ops:
        signature = op.signature()
        if signature not in memory:
            memory[signature] = price(op, own, on_unknown)
        first = memory[signature]
        priced.append(replace(first, op=op))
    return tuple(priced)


@cache
def load_rules() -> None:
    """Imports modules named as entry points of rooflinekit.rules, which register rules.

    Raises PluginError for one that cannot be imported.
    """
    for _ in plugins(GROUP):
        pass


def described_rules() -> dict[str, dict[str, list[str]]]:
    """Module's purpose → the first paragraph of a rule's docstring → the kinds that it prices, of all shipped rules."""
    found: dict[str, dict[str, list[str]]] = {}
    for kind, function in _RULES.items():
        if not (function.__module__ or "").startswith("rooflinekit.cost.rules."):
            continue  # a rule of the user's
        purpose = _paragraph(sys.modules[function.__module__].__doc__)
        found.setdefault(purpose.rstrip("."), {}).setdefault(_paragraph(function.__doc__), []).append(kind)
    return found


def _paragraph(text: str | None) -> str:
    """The first one, in a line."""
    return " ".join((text or "").strip().split("\n\n")[0].split())


def _unknown(op: Op, kind: str) -> UnknownOpError:
    shapes = ", ".join(str(list(t.shape)) for t in op.inputs)
    return UnknownOpError(
        f"no cost rule for op {kind!r} (module {op.module or 'root'!r}, inputs {shapes})"
        f"{nearest(kind, [*_RULES, *_FREE])}\n"
        f'Add one:\n    @rooflinekit.rule("{kind}")\n    def my_rule(op):\n        return rooflinekit.traffic(op)'
    )
