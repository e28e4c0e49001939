"""Named sizes as torch's symbolic integers, and what the model's code demanded of them."""

from __future__ import annotations

import math
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

import sympy
import torch
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.sym_node import SymNode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.utils._sympy import functions as torch_functions
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

from rooflinekit.errors import InputError
from rooflinekit.ir.inputs import Input
from rooflinekit.ir.sizes import LARGEST, Condition, ForcedSize, Size, simplest, symbol
from rooflinekit.tracing.surroundings import in_this_thread, standing_in
from rooflinekit.tracing.tensors import FAKE_DEVICE

#: The place of what no line of the model's own code asked for.
UNKNOWN = "an unknown line"
#: Different questions about open sizes after which a trace gives up on them: others ask a few hundred, in seconds.
MOST_QUESTIONS = 1500
#: Reason of a failure for too many.
TOO_MANY = (
    f"open sizes raise more than {MOST_QUESTIONS:,} different questions; with fixed=False they stay open, however long "
    "that takes"
)
#: Answers that a user gives in one line after which open sizes are given up on: numbers of fixed ones may end the loop.
MOST_ANSWERS = 300
#: Reasons of a failure of open sizes alone.
GIVEN_UP = (TOO_MANY, f"a loop goes on after {MOST_ANSWERS} answers of assume=, and open sizes do not tell its end")
#: Reason of a failure for a size that the model's code forces to a number, where such a trace is of no use.
IN_VAIN = "an open size is forced to a number"
_TORCH = str(Path(torch.__file__).parent)
_OURS = str(Path(__file__).parent.parent)
_SYMBOLIC = str(Path(_TORCH) / "fx" / "experimental")
_SYM_INT = str(Path(_TORCH) / "__init__.py")  # what a comparison of sizes in Python goes through


_ABSENT = object()
_REPLACED = "_replacements_version_counter"  # of a ShapeEnv
_REMAINDERS = (torch_functions.Mod, torch_functions.PythonMod)
_TO_THE_END = 2**63 - 1  # as an operator writes `x[a:]`


class TooManyQuestionsError(Exception):
    """More is asked of open sizes than is worth waiting for."""


class SizeForcedError(Exception):
    """A size is forced to a number in a trace that is wanted with all of them open."""


class RecordingShapeEnv(ShapeEnv):
    """A ShapeEnv that remembers which line of the model asked each question about a symbolic size."""

    def __init__(self, most: float, *, all_open: bool = False) -> None:
        super().__init__()
        self._most, self._different = most, set[sympy.Basic]()
        self._all_open = all_open
        self.named = set[sympy.Symbol]()  # torch's symbols of the user's sizes
        # of `remembered_arithmetic`; None where this torch does not count what it has replaced in expressions
        self.worked_out: dict[object, SymNode] | None = {} if hasattr(self, _REPLACED) else None
        self.parts: list[sympy.Basic] = []  # of each slice, that it does not end where the whole does
        self.asked: dict[sympy.Basic, str] = {}  # question → "model.py:12"
        self.inside_op = False
        self.of_ops: set[sympy.Basic] = set()  # asked by an operator's own shape code
        self.of_torch: set[sympy.Basic] = set()  # asked by torch's compiled code, on the way to operators

    def evaluate_expr(self, orig_expr: sympy.Basic, *args: Any, **kwargs: Any) -> sympy.Basic:
        """As in torch; a question that leaves a new guard is kept with its place.

        Raises TooManyQuestionsError, and SizeForcedError where all sizes are to stay open.
        """
        self._different.add(orig_expr)
        if len(self._different) > self._most:
            raise TooManyQuestionsError(TOO_MANY)
        before = len(self.guards), len(self.replacements)
        answer = super().evaluate_expr(orig_expr, *args, **kwargs)
        if self._all_open and any(self.replacements[one].is_Integer for one in self.named & self.replacements.keys()):
            raise SizeForcedError(IN_VAIN)
        if (len(self.guards), len(self.replacements)) != before:
            where, inside = caller(), _inside_torch()
            for question in (orig_expr, *(guard.expr for guard in self.guards[before[0] :])):
                self.asked.setdefault(question, where)
                if self.inside_op:
                    self.of_ops.add(question)
                if inside:
                    self.of_torch.add(question)
        return answer


def _place(frames: Iterable[tuple[FrameType, int]]) -> str:
    """The first of the frames whose code is neither torch's nor ours: "model.py:12"."""
    for frame, line in frames:
        file = frame.f_code.co_filename
        if not file.startswith((_TORCH, _OURS, "<frozen")):
            return f"{Path(file).name}:{line}"
    return UNKNOWN


def caller() -> str:
    """The line of the model's own code that runs: "model.py:12"."""
    return _place(traceback.walk_stack(sys._getframe(1)))


def _inside_torch() -> bool:
    """Whether it is torch's compiled code that asks, not a comparison in Python."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename.startswith((_SYMBOLIC, _OURS)):
        frame = frame.f_back
    return frame is None or frame.f_code.co_filename != _SYM_INT


def place_of(error: BaseException) -> str:
    """The innermost line of the model's own code that an error passed through: "model.py:12"."""
    return _place(reversed(list(traceback.walk_tb(error.__traceback__))))


#: Where examples begin, and their step: small and odd; of images; of sound.
FIRST, *FURTHER = (5, 2), (256, 32), (16_384, 512)


def example_sizes(
    names: Iterable[str], given: Mapping[str, int], taken: Iterable[int],
    firsts: Iterable[str] = (), ladder: Iterable[tuple[int, int]] = FURTHER,
) -> Iterator[dict[str, int]]:  # fmt: skip
    """A number for each name to trace at: the given one, else one that nothing else in the model has.

    Examples must differ from each other and from the model's own sizes, or equal sizes would be taken for the same; and
    from 1, which torch takes for a constant. FURTHER ones are for models that refuse small odd ones or make something
    else of them. `firsts` are names of first dimensions, which batches are.
    """
    used, firsts = {*taken, *given.values(), 0, 1}, set(firsts)
    for start, step in ladder:
        small, large = count(6, 2), count(start, step)
        examples = dict(given)
        for name in names:
            if examples.get(name, 1) == 1:
                examples[name] = next(size for size in (small if name in firsts else large) if size not in used)
                used.add(examples[name])
        yield examples


def hashable_sizes() -> AbstractContextManager[None]:
    """Within it open sizes may be keys of caches and dicts, as the integers are that they stand for."""
    original = torch.SymInt.__hash__

    def value(size: Any) -> int:
        return original(size) if size.node.is_nested_int() else hash(size.node.expr)

    return standing_in([(torch.SymInt, "__hash__", value)])


#: Operators of two numbers whose result follows from both expressions, and from what has been replaced in these.
_ARITHMETIC = ("add", "sub", "mul", "int_floordiv", "eq", "ne", "lt", "le", "gt", "ge")


@contextmanager
def remembered_arithmetic() -> Iterator[None]:
    """Within it the same arithmetic of open sizes is done once: sympy takes 30 µs, and each tensor asks ten times."""
    kind: Any = SymNode
    keys: dict[str, Callable[..., object]] = {
        **{f"_{name}": partial(_operands, name) for name in _ARITHMETIC},
        "wrap_int": lambda one, number: number if type(number) is int else None,
        "maybe_as_int": lambda one: (one._expr, one.shape_env._replacements_version_counter),
    }
    made = [(kind, name, _remembered(getattr(kind, name), key)) for name, key in keys.items()]
    with standing_in([*made, (kind, "expr", property(_replaced(kind.expr.fget)))]):
        yield


def _worked_out(node: Any) -> dict[object, Any] | None:
    """What one of our traces remembers; None for sizes of somebody else's."""
    return getattr(node.shape_env, "worked_out", None)


def _operands(name: str, one: Any, other: Any) -> object:
    """What the result of an operator hangs on; None where no example is a number."""
    if type(one._hint) is not int or type(other._hint) is not int:
        return None
    # a sum of names alone is made in another way than other sums
    sums = one._optimized_summation, other._optimized_summation
    version = one.shape_env._replacements_version_counter
    return name, one._expr, other._expr, one.pytype, other.pytype, sums, version


def _remembered(original: Callable[..., Any], key: Callable[..., object]) -> Callable[..., Any]:
    """A method that remembers its result by the key of its arguments, where that is not None."""

    def method(one: Any, *others: Any) -> Any:
        known = _worked_out(one)
        place = None if known is None else key(one, *others)
        if known is None or place is None:
            return original(one, *others)
        found = known.get(place, _ABSENT)
        if found is _ABSENT:
            found = known[place] = original(one, *others)
        return found

    return method


def _replaced(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """torch's way to a size's expression, without asking each time whether it is a number."""

    def expr(one: Any) -> Any:
        environment = one.shape_env
        version = getattr(environment, _REPLACED, None)
        if version is None:
            return original(one)
        if version == 0 or one.constant is not None:
            return one._expr
        if version == one._expr_ver and one._expr_cache is not None:
            return one._expr_cache
        return original(one)

    return expr


def slices_to_the_end() -> AbstractContextManager[None]:
    """Within it `x[:, :]` is x, as for numbers: torch does not know of a product of open sizes that it ends there.

    Where it may end there, as `x[:, :n]` does at one n, the trace speaks for the others.
    """
    kind: Any = SymNode
    original = kind.statically_known_true

    def known(one: Any, file: str, line: int) -> Any:
        asked = one.expr
        if (isinstance(asked, sympy.Le) and asked.rhs == _TO_THE_END) or original(one, file, line):
            return True
        if isinstance(asked, sympy.Le) and isinstance(one.shape_env, RecordingShapeEnv):
            one.shape_env.parts.append(sympy.Ne(asked.lhs, asked.rhs))
        return False

    return standing_in([(kind, "statically_known_true", known)])


def plain_quotients() -> AbstractContextManager[None]:
    """Within it torch divides a size by a factor of each of its terms as that is done by hand.

    It asks sympy to simplify the quotient: of a padded image cut into windows that takes seconds a division.
    """
    original = sympy.simplify

    def simplify(expr: Any, *args: Any, **kwargs: Any) -> Any:
        if args or kwargs:
            return original(expr, *args, **kwargs)
        whole = next(filter(_is_whole, (expr, _distributed(expr))), None)
        return original(expr) if whole is None else whole

    return standing_in([(sympy, "simplify", in_this_thread(original, simplify))])


def plain_multiples() -> AbstractContextManager[None]:
    """Within it a size that is brought to a multiple of a number is written as that number times a quotient.

    Models write `n + (4 - n % 4) % 4`. torch keeps it so: what is cut into windows, padded and cut again becomes a
    formula of thousands of terms.
    """
    kind: Any = SymNode
    return standing_in((kind, name, _brought(getattr(kind, name))) for name in ("_add", "_sub"))


def _brought(original: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def operator(one: Any, other: Any) -> Any:
        made = original(one, other)
        if _worked_out(one) is not None and isinstance(made, SymNode):
            made._expr = _multiple(made._expr)
        return made

    return operator


def _multiple(expr: sympy.Expr) -> sympy.Expr:
    """A sum as a multiple of m where it is `x + -x % m`, up to one, or `x - x % m`, down to one."""
    for term in expr.args if expr.is_Add else ():
        sign, rest = term.as_coeff_Mul()
        if abs(sign) == 1 and isinstance(rest, _REMAINDERS) and rest.args[1].is_Integer:
            inside, by = rest.args
            others = expr - term
            if by > 0 and torch_functions.PythonMod(_modulo(inside + sign * others, by), by) == 0:
                return by * torch_functions.FloorDiv(others + (by - 1 if sign > 0 else 0), by)
    return expr


def _always(question: sympy.Basic) -> bool:
    """Whether an inequality holds at all sizes, since `x // m` is `(x - x % m) / m`."""
    if not (isinstance(question, sympy.Le | sympy.Lt | sympy.Ge | sympy.Gt) and question.has(torch_functions.FloorDiv)):
        return False
    before, difference = None, question.lhs - question.rhs
    while difference != before:
        before, difference = difference, sympy.expand(_with_remainders(difference))
    if difference.has(torch_functions.FloorDiv):  # by a size
        return False
    found = bound_sympy(difference)  # of all sizes, not those that this very question leaves
    return all(question.func(bound, 0) == True for bound in (found.lower, found.upper))  # noqa: E712  # sympy's


def _with_remainders(expr: sympy.Expr) -> sympy.Expr:
    """`x // m` as `(x - x % m) / m`."""
    return expr.replace(
        lambda part: isinstance(part, torch_functions.FloorDiv) and part.args[1].is_Integer,
        lambda part: (part.args[0] - torch_functions.PythonMod(*part.args)) / part.args[1],
    )


def _modulo(expr: sympy.Expr, by: sympy.Integer) -> sympy.Expr:
    """Something that leaves the same remainder, without remainders of its own."""
    return expr.replace(
        lambda part: isinstance(part, _REMAINDERS) and part.args[1] % by == 0, lambda part: part.args[0]
    )


def _distributed(expr: sympy.Expr) -> sympy.Expr:
    """Each term of the only sum among an expression's factors, times the others."""
    factors = sympy.Mul.make_args(expr)
    sums = [factor for factor in factors if factor.is_Add]
    if len(sums) != 1:
        return expr
    others = sympy.Mul(*(factor for factor in factors if factor is not sums[0]))
    return sympy.Add(*(term * others for term in sums[0].args))


def _is_whole(expr: sympy.Expr) -> bool:
    """Whether each of its terms is a product without a fraction or a division."""
    factors = (factor for term in sympy.Add.make_args(expr) for factor in sympy.Mul.make_args(term))
    return all(one.is_Integer or not (one.is_Number or one.as_base_exp()[1].is_negative) for one in factors)


def channels_last_of(dimensions: int) -> torch.memory_format:
    """The layout with channels last of tensors with so many dimensions; the plain one where there is none."""
    return {4: torch.channels_last, 5: torch.channels_last_3d}.get(dimensions, torch.contiguous_format)


#: Numbers of a tensor; beyond, torch cannot say how many bytes they are.
_MOST = 2**58


class Symbols:
    """The user's named sizes in one trace."""

    def __init__(
        self, names: Iterable[str], examples: Mapping[str, int], *, always_open: bool = False,
        most_questions: float = math.inf, all_open: bool = False,
    ) -> None:  # fmt: skip
        self.names = tuple(names)
        self.examples = dict(examples)
        # Without open sizes torch keeps plain integers, which is several times faster.
        fixed = not (self.names or always_open)
        self._environment = RecordingShapeEnv(most_questions, all_open=all_open)
        asked = None if fixed else self._environment
        self.fake = FakeTensorMode(shape_env=asked, allow_non_fake_inputs=True, static_shapes=fixed)
        # torch's own memory of results asks about each open size again; `OpMemory` has them all.
        self.fake.cache_enabled = fixed
        self._to_user: dict[sympy.Symbol, sympy.Symbol] = {}
        self._known: dict[sympy.Basic, Size] = {}
        self._padded: list[sympy.Basic] = []
        self._ours = {symbol(name) for name in self.names}

    @contextmanager
    def inside_op(self) -> Iterator[None]:
        """Marks questions as those of an operator, not of the model's own code."""
        self._environment.inside_op = True
        try:
            yield
        finally:
            self._environment.inside_op = False

    def tensor(self, described: Input, name: str, *, channels_last: bool = False) -> torch.Tensor:
        """A fake tensor as described, its named sizes symbolic; images with `channels_last` in that layout.

        Raises InputError for one that is too large.
        """
        layout = channels_last_of(len(described.shape)) if channels_last else torch.contiguous_format
        shape: Sequence[Any] = [self.examples[size] if isinstance(size, str) else size for size in described.shape]
        if math.prod(shape) > _MOST:
            raise InputError(f"input {name!r}: {described!r} has more than 2**58 numbers: choose smaller sizes")
        dtype = getattr(torch, described.dtype.value)
        if described.names:
            dynamic = [DimDynamic.DYNAMIC if isinstance(s, str) else DimDynamic.STATIC for s in described.shape]
            shape = self.fake.from_tensor(
                torch.empty(shape, dtype=dtype, device="meta"),
                symbolic_context=StatelessSymbolicContext(dynamic_sizes=dynamic),
                source=ConstantSource(name),
            ).shape
        for wanted, size in zip(described.shape, shape, strict=True):
            if isinstance(wanted, str):
                theirs = size.node.expr
                self._to_user[theirs] = symbol(wanted)
                self._environment.named.add(theirs)
                # known to be smaller than the end of `x[:]`, which then is x, as for numbers
                self._environment._update_var_to_range(theirs, ValueRanges(2, LARGEST))
        with self.fake:
            return torch.empty(shape, dtype=dtype, device=FAKE_DEVICE, memory_format=layout)

    def size(self, value: Any) -> Size:
        """A size of torch's, `int` or `SymInt`, as one of ours."""
        return self.expression(value.node.expr) if isinstance(value, torch.SymInt) else int(value)

    def expression(self, expr: sympy.Basic) -> Size:
        """torch's expression in the user's names and sympy's own functions."""
        found = self._known.get(expr)
        if found is None:
            found = self._known[expr] = simplest(self._translated(expr))
        return found

    def unknown(self, size: Size) -> bool:
        """Whether it hangs on a number that stands in a tensor."""
        return not isinstance(size, int) and any(free not in self._ours for free in size.free_symbols)

    def _translated(self, expr: Any) -> Any:
        """The expression rebuilt from its leaves up: torch's functions become sympy's."""
        if not expr.args:
            return self._to_user.get(expr, expr)
        args = [self._translated(arg) for arg in expr.args]
        function = _SYMPY_FUNCTIONS.get(type(expr).__name__, expr.func)
        return function(*args)

    def forced(self) -> tuple[ForcedSize, ...]:
        """The named sizes that the model's code turned into constants, each with the line that did."""
        found = []
        for theirs, ours in self._to_user.items():
            value = self._environment.replacements.get(theirs)
            if value is not None and value.is_Integer:
                asked = self._environment.asked.items()
                places = [where for question, where in asked if theirs in question.free_symbols]
                where = places[-1] if places else UNKNOWN
                found.append(ForcedSize(name=ours.name, value=int(value), where=where))
        return tuple(found)

    def conditions(self) -> tuple[Condition, ...]:
        """Relations between sizes on which the traced path depends."""
        environment = self._environment
        found: dict[sympy.Basic, Condition] = {}
        for question, holds in self._guards():
            # An operator's own inequalities choose among CPU libraries and memory formats; its equalities are shape
            # checks, and those hold for every device.
            choice = question in environment.of_ops and not isinstance(holds, sympy.Eq)
            if not (choice or self._special(question, holds) or _always(question)):
                where = environment.asked.get(question, UNKNOWN)
                found.setdefault(holds, Condition(holds=holds, where=where))
        return tuple(found.values())

    def _guards(self) -> list[tuple[sympy.Basic, sympy.Basic]]:
        """What was asked of sizes, in torch's names and in the user's, where it has some of these."""
        asked = [guard.expr for guard in self._environment.guards]
        return [(one, holds) for one in asked if (holds := self._translated(one)).free_symbols]

    def pads(self, sides: Iterable[Size]) -> None:
        """Notes that an operator adds something at one side or another; where it does not, it is a copy alone."""
        self._padded.append(sympy.Or(*(sympy.Gt(side, 0) for side in sides)))

    def apart(self) -> tuple[sympy.Basic, ...]:
        """Relations that hold but at sizes of which operators make something else: each open size is not 1, first."""
        forced = {size.name for size in self.forced()}
        found = [sympy.Ne(symbol(name), 1) for name in self.names if name not in forced]
        found += [holds for question, holds in self._guards() if self._special(question, holds)]
        parts = *self._padded, *map(self._translated, self._environment.parts)
        found += (less for less in parts if less.free_symbols and less.free_symbols <= self._ours)
        return tuple(dict.fromkeys(found))

    def _special(self, question: sympy.Basic, holds: sympy.Basic) -> bool:
        """Whether it sets a size apart from 0 or 1 as broadcasting and contiguity do, not the model's own code."""
        inside = question in self._environment.of_ops or question in self._environment.of_torch
        return inside and isinstance(holds, sympy.Ne) and any(side in (0, 1) for side in holds.args)


#: torch's own sympy functions, by name, as sympy's.
_SYMPY_FUNCTIONS: dict[str, Any] = {
    "FloorDiv": lambda a, b: sympy.floor(a / b),
    **dict.fromkeys(("CleanDiv", "IntTrueDiv", "FloatTrueDiv"), lambda a, b: a / b),
    **dict.fromkeys(("PythonMod", "Mod"), sympy.Mod),
    "Max": sympy.Max,
    "Min": sympy.Min,
    "CeilToInt": sympy.ceiling,
    **dict.fromkeys(("FloorToInt", "TruncToInt"), sympy.floor),  # of sizes, which are positive
    **dict.fromkeys(("PowByNatural", "FloatPow"), sympy.Pow),
    **dict.fromkeys(("ToFloat", "Identity"), lambda a: a),
    "Where": lambda condition, a, b: sympy.Piecewise((a, condition), (b, True)),
}
assert all(hasattr(torch_functions, name) for name in ("FloorDiv", "CleanDiv", "PythonMod"))
