"""Descriptions of inputs, in Python and on a command line."""

import numpy as np
import pytest
import torch
from refusals import refusal

from rooflinekit import Input
from rooflinekit.errors import InputError
from rooflinekit.ir.op import DType


def test_an_input_has_sizes_names_and_a_format():
    x = Input("batch", 3, "size", "size", dtype="bfloat16")
    assert x.shape == ("batch", 3, "size", "size")
    assert x.names == ("batch", "size")
    assert x.dtype is DType.BFLOAT16


def test_an_input_is_float32_and_may_be_a_scalar():
    assert Input().shape == ()
    assert Input().dtype is DType.FLOAT32
    assert Input().names == ()


@pytest.mark.parametrize("dtype", ["float16", "torch.float16", torch.float16, DType.FLOAT16])
def test_a_format_may_be_named_in_any_way(dtype):
    assert Input(2, dtype=dtype).dtype is DType.FLOAT16


def test_sizes_of_numpy_become_integers():
    (size,) = Input(np.int32(7)).shape
    assert (size, type(size)) == (7, int)


def test_inputs_are_equal_by_value():
    assert Input("batch", 3) == Input("batch", 3)
    assert hash(Input("batch", 3)) == hash(Input("batch", 3))
    assert Input("batch", 3) != Input("batch", 4)
    assert Input("batch", 3) != Input("batch", 3, dtype="float16")
    assert Input("batch", 3) != ("batch", 3)


@pytest.mark.parametrize("described", [Input("batch", 3, dtype="int64"), Input(), Input(4)])
def test_the_repr_of_an_input_builds_it(described):
    assert eval(repr(described)) == described


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0,), "expected a positive size; got 0"),
        ((3, -1), "expected a positive size; got -1"),
        ((True,), "expected a size as a positive integer or a name; got True"),
        ((2.0,), "expected a size as a positive integer or a name; got 2.0"),
        ((None,), "expected a size as a positive integer or a name; got None"),
        (((2, 3),), "sizes are arguments of their own: Input(2, 3), not Input((2, 3))"),
        (("batch,3",), "sizes are arguments of their own: Input('batch', 3), not Input('batch,3')"),
        (("2x",), "size '2x' is no name: expected letters, digits and underscores, such as 'batch'"),
        (("",), "size '' is no name: expected letters, digits and underscores, such as 'batch'"),
        (("batch size",), "size 'batch size' is no name: expected letters, digits and underscores, such as 'batch'"),
    ],
)
def test_what_is_no_size_of_an_input(arguments, message):
    with pytest.raises(InputError) as caught:
        Input(*arguments)
    assert str(caught.value) == message
    assert isinstance(caught.value, ValueError)


FORMATS = (
    "float64, float32, float16, bfloat16, float8_e4m3fn, float8_e5m2, float8_e4m3fnuz, float8_e5m2fnuz, "
    "float8_e8m0fnu, float4_e2m1fn_x2, complex128, complex64, complex32, int64, int32, int16, int8, uint64, uint32, "
    "uint16, uint8, bool"
)


def test_an_unknown_format_is_an_error_that_lists_the_known():
    assert refusal(InputError, Input, 2, dtype="flaot16") == (
        f"unknown number format 'flaot16'; did you mean 'float16' or 'bfloat16' or 'float64'? (known: {FORMATS})"
    )
    assert refusal(InputError, Input, 2, dtype="zzz") == f"unknown number format 'zzz' (known: {FORMATS})"


# --- on a command line ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("batch,3,224,224", Input("batch", 3, 224, 224)),
        ("batch,seq:int64", Input("batch", "seq", dtype="int64")),
        (" batch , 3 : float16 ", Input("batch", 3, dtype="float16")),
        ("7", Input(7)),
        ("7:", Input(7)),
        ("batch:torch.bfloat16", Input("batch", dtype="bfloat16")),
    ],
)
def test_parsing_an_input(text, expected):
    assert Input.parse(text) == expected


@pytest.mark.parametrize("text", ["", ":int64", "batch,", ",3", "batch,,3"])
def test_an_input_with_a_missing_size(text):
    assert refusal(InputError, Input.parse, text) == (
        f"input {text!r}: expected sizes separated by commas, names or numbers, such as 'batch,3,224,224' "
        "or 'batch,seq:int64'"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("batch,0", "input 'batch,0': expected a positive size; got 0"),
        ("-3", "input '-3': expected a positive size; got -3"),
        ("2.5,3", "input '2.5,3': size '2.5' is no name: expected letters, digits and underscores, such as 'batch'"),
        ("3x224", "input '3x224': size '3x224' is no name: expected letters, digits and underscores, such as 'batch'"),
        ("3:zzz", f"input '3:zzz': unknown number format 'zzz' (known: {FORMATS})"),
    ],
)
def test_an_input_that_cannot_be_parsed_is_named(text, message):
    assert refusal(InputError, Input.parse, text) == message
