"""Ops built by hand, and small networks traced, priced by the rules."""

from __future__ import annotations

import itertools
from types import MappingProxyType

import pytest
import torch

import rooflinekit
from rooflinekit.cost.table import price
from rooflinekit.ir.op import DType, Op, TensorSpec

_numbers = itertools.count()


def _tensor(*shape, dtype="float32", name=None, stride=None, storage=""):
    name = name or f"tensor_{next(_numbers)}"
    return TensorSpec(name=name, shape=shape, dtype=DType(dtype), stride=stride, storage=storage)


def _price(kind, inputs, outputs, **attrs):
    kind = kind if "." in kind else f"aten.{kind}"
    op = Op(name="op", kind=kind, inputs=tuple(inputs), outputs=tuple(outputs), attrs=MappingProxyType(attrs))
    return price(op, on_unknown="raise").costs


def _trace(model, *inputs, **options):
    described = [rooflinekit.Input(*x) if isinstance(x, tuple) else x for x in inputs]
    return rooflinekit.trace(model, *described, strict=True, **options)


def _costs_of(graph, kind, phase=None):
    return [
        cost
        for priced in graph.priced
        if priced.op.kind == f"aten.{kind}" and phase in (None, priced.op.phase)
        for cost in priced.costs
    ]


@pytest.fixture
def tensor():
    """A tensor of these sizes, float32 and contiguous unless told otherwise, with a name of its own."""
    return _tensor


@pytest.fixture
def costs():
    """The costs of an op built by hand, of ATen where no library is named, one a kernel; it must have a rule."""
    return _price


@pytest.fixture
def cost(costs):
    """The cost of such an op of one kernel."""

    def one(kind, inputs, outputs, **attrs):
        (found,) = costs(kind, inputs, outputs, **attrs)
        return found

    return one


@pytest.fixture(scope="session")
def warm():
    """Traced once: what torch and sympy load at their first use is no test's time."""
    _trace(torch.nn.Linear(2, 3), ("batch", 2), mode="training", optimizer=torch.optim.SGD)


@pytest.fixture
def traced(warm):
    """The priced graph of a module; tuples among its inputs are shapes of float32. An op without a rule is an error."""
    return _trace


@pytest.fixture
def costs_of():
    """The costs of all kernels of one ATen kind in a graph, and in one phase if that is given."""
    return _costs_of
