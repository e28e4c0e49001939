"""Whatever is handed to a public function or record: an answer, or one error that names the argument."""

import inspect
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import rooflinekit as rk
from rooflinekit.errors import InputError, RooflinekitError, UnitError
from rooflinekit.ir.arguments import checked

WRONG = (
    None, "x", "", math.nan, math.inf, -math.inf, 0, -1, 0.5, 1e300, 10**400, True, [], {}, object(), b"1", 1 + 2j,
    (1, 2), "1e400 W",
)  # fmt: skip
GRAPH = rk.trace(nn.Sequential(nn.Linear(8, 8), nn.ReLU()), rk.Input("batch", 8))
STEP = rk.predict(GRAPH, "nvidia-l4", batch=8)
PRICE = rk.Price(hour=1.0, currency="USD")


@checked
def taking(a: int, b: float | None = None, *rest: Any, pair: tuple[float, str] | None = None, **sizes: int) -> object:
    return [1, 2, 3][a], math.sqrt(b or 0.0), pair and pair[1].upper(), [3 // size for size in sizes.values()]


@checked
def listing(of: Sequence[float], by: Mapping[str, float] | None = None) -> int:
    return len(of)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: taking("1"), "a: expected a whole number; got '1'"),
        (lambda: taking(1, b="x"), "b: expected a number or None; got 'x'"),
        (lambda: taking(1, pair=(1.0, 2)), r"pair: expected .*; got \(1.0, 2\)"),
        (lambda: taking(1, batch=[2]), r"batch: expected a whole number; got \[2\]"),
        (lambda: taking(1, b=math.nan), "b: expected a number or None; got nan"),
        (lambda: listing([1, "x"]), "of: expected a list of number; got"),
        (lambda: listing(np.array([1.0, math.nan])), "of: expected a list of number; got"),
        (lambda: listing({1.0, "x"}), "of: expected a list of number; got"),
        (lambda: listing([], {3: 1.0}), "by: expected a mapping or None; got"),
        (lambda: rk.plot.roofline(STEP, joined="x"), "joined: expected True or False; got 'x'"),
        (lambda: rk.plot.memory("x"), "prediction: expected a Prediction or a ParallelPrediction; got 'x'"),
        (
            lambda: rk.advise("timm:resnet50"),
            "p: expected a Prediction; got 'timm:resnet50'; rk.predict",
        ),
        (lambda: rk.advise(STEP, "t4"), "gpus: expected a list of names, paths or Devices; got 't4'"),
        (lambda: rk.plot.timeline(3), "prediction: expected a Prediction or a ParallelPrediction; got 3"),
        (lambda: rk.explore(GRAPH, gpus=["nvidia-l4"], batch=[1, 2], power=["x"]), "power: expected"),
        (lambda: rk.collective_time("all-reduce", 1e6, "dgx-a100", 8, sharing=math.nan), "sharing: expected"),
        (lambda: rk.Gemm(m=8, n="8", k=8), "Gemm n: expected a number of 0 or more, or a formula of sizes; got '8'"),
        (lambda: rk.Gemm(m=8, n=8, k=8, needed=math.nan), "Gemm needed: expected .*; got nan"),
        (lambda: rk.Cost(read_bytes=-4), "Cost read_bytes: expected a number of 0 or more, .*; got -4"),
        (lambda: rk.Cost(gemms=rk.Gemm(m=8, n=8, k=8)), "Cost gemms: expected a tuple of Gemm; got Gemm"),
        (lambda: rk.Request(arrival_s=math.nan, input=8, output=8), "request: expected seconds .*arrival_s=nan"),
        (lambda: rk.Request(arrival_s=0.0, input=8, output=8, cached=8), "request: .*fewer cached than input; got"),
        (lambda: rk.devices(vendor=3), "vendor: expected a text or None; got 3"),
        (lambda: rk.rule(3), "kinds: expected a text; got 3"),
        (lambda: rk.rule(len), "kinds: expected a text; got <built-in function len>"),
        (lambda: rk.rule(), "rule: expected kinds of ops, such as 'aten.mm'"),
        (lambda: rk.rule("mylib.gate")("mylib"), "rule of mylib.gate: expected a function of an op; got 'mylib'"),
        (lambda: rk.plot.sweep([1, 2]), r"sweep: table: expected a pandas DataFrame; got \[1, 2\]"),
        (lambda: rk.plot.errors("table.csv"), "errors: table: expected a pandas DataFrame; got 'table.csv'"),
    ],
)
def test_an_argument_of_another_type_is_named(call: Callable[[], object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()


def test_what_fits_and_an_error_of_the_function_itself_pass() -> None:
    assert taking(np.int64(1), np.float32(4.0), "further", pair=(1.0, "x"), n=3)[:3] == (2, 2.0, "X")
    with pytest.raises(IndexError):
        taking(5)
    with pytest.raises(TypeError, match="multiple values for argument 'a'"):
        taking(1, a=2)


def test_what_must_be_given_is_named() -> None:
    with pytest.raises(InputError, match=r"^taking: a must be given: add a=…$"):
        taking()
    with pytest.raises(InputError, match=r"^serve: batch and input must be given: add batch=…, input=…$"):
        rk.serve(rk.Decoder.from_config("llama-3.1-8b"), "nvidia-l4", output=8)
    with pytest.raises(InputError, match=r"rk\.plot\.roofline\(…\), \.timeline\(…\)"):
        rk.plot(STEP)  # type: ignore[operator]


def calls() -> Iterator[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]]:
    yield rk.predict, (GRAPH, "nvidia-l4"), {"batch": 8}
    yield rk.predict, (nn.Linear(8, 8), rk.Input("b", 8)), {"gpu": "nvidia-l4", "b": 4}
    yield rk.compare_gpus, (GRAPH,), {"gpus": ["nvidia-l4"], "batch": 8}
    yield rk.sweep, (GRAPH,), {"gpus": ["nvidia-l4"], "batch": [1, 2]}
    yield rk.collective_time, ("all-reduce", 1e6), {"cluster": "dgx-a100", "gpus": 8}
    yield rk.power_limits, (STEP,), {}
    yield rk.costs, (STEP, PRICE), {}
    yield rk.summary, (STEP,), {}
    yield STEP.by_module, (), {}
    yield rk.Execution, (), {}
    yield rk.Price, (), {"hour": 1.0, "currency": "USD"}
    yield rk.Traffic, (), {"input": 8, "output": 8, "rate": 1.0}
    yield rk.Engine, (), {}
    yield rk.ServiceLevel, (), {"ttft_s": 1.0}
    yield rk.Speculation, (), {"tokens": 3, "acceptance": 0.7}
    yield rk.Request, (), {"arrival_s": 0.0, "input": 2, "output": 2}
    yield rk.Gemm, (), {"m": 8, "n": 8, "k": 8}
    yield rk.Cost, (), {"vector_flop": 8}
    yield rk.devices, (), {}
    yield rk.plot.sweep, (), {"table": rk.sweep(GRAPH, gpus=["nvidia-l4"], batch=[1, 2])}
    for record in (rk.Mesh, rk.FSDP, rk.DDP, rk.Savers, rk.Layout, rk.Recipe):
        yield record, (), {}


@pytest.mark.parametrize(("function", "given", "named"), list(calls()))
def test_no_value_of_any_argument_ends_in_an_error_from_inside(
    function: Callable[..., Any], given: tuple[Any, ...], named: dict[str, Any]
) -> None:
    parameters = list(inspect.signature(function).parameters.values())
    names = {p.name for p in parameters[len(given) :] if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)}
    for name in sorted((names | named.keys()) - {"self", "progress", "processes"}):
        for wrong in WRONG:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                with suppress(RooflinekitError):
                    str(function(*given, **{**named, name: wrong}))


def test_a_rule_that_counts_no_number_is_named() -> None:
    with pytest.raises(InputError, match=r"rule of 'aten\.relu': Cost vector_flop: expected a number of 0 or more"):
        rk.trace(torch.relu, rk.Input(8), rules={"aten.relu": lambda op: rk.Cost(vector_flop=math.nan)})
    with pytest.raises(InputError, match=r"rule of 'aten\.relu': expected a Cost, or one for each kernel; got 3"):
        rk.trace(torch.relu, rk.Input(8), rules={"aten.relu": lambda op: 3})


def test_a_quantity_without_its_unit_is_named() -> None:
    for name, given, message in (("power_limit", "50", "a quantity in W"), ("sm_clock", "1200", "a quantity in Hz")):
        with pytest.raises(UnitError, match=f"^{name}: expected {message}.*; got '{given}'$"):
            rk.predict(GRAPH, "nvidia-l4", batch=8, **{name: given})
