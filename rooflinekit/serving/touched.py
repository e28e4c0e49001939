"""How many of several experts, or adapters, some token of a step uses."""

from __future__ import annotations

from rooflinekit.ir.sizes import Size, simplest


def touched_experts(experts: int, per_token: int, tokens: Size, ep: int = 1) -> Size:
    """Experts that at least one of the tokens passes, on average: E · (1 − (1 − k/E)^tokens), to the nearest whole.

    Of E / ep of them where these are divided, and never less than one: the kernel runs.

    Each token takes k distinct ones of E, all choices alike and independent of the other tokens' (uniform routing).

    >>> touched_experts(8, 2, 1), touched_experts(8, 2, 4), touched_experts(8, 2, 1000)
    (2, 5, 8)
    """
    if per_token == experts:
        return experts // ep
    import sympy

    missed = sympy.Float(1 - per_token / experts) ** sympy.sympify(tokens)
    held = sympy.floor(sympy.Rational(experts, ep) * (1 - missed) + sympy.Rational(1, 2))
    return simplest(held if ep == 1 else sympy.Max(1, held))
