"""What `rooflinekit` offers is what it says it offers, and asking for it loads no more than it needs."""

import inspect
import subprocess
import sys

import pytest

import rooflinekit as rk


def test_all_names_exist_and_are_sorted() -> None:
    # as ruff sorts them: names in capitals first
    assert rk.__all__ == sorted(rk.__all__, key=lambda name: (not name.isupper(), name))
    assert {"explain", "predict", "sweep", "trace"} <= set(rk.__all__)
    for name in rk.__all__:
        assert getattr(rk, name) is not None
    assert set(rk.__all__) <= set(dir(rk))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'rooflinekit' has no attribute 'tarce'"):
        _ = rk.tarce


def test_no_function_takes_words_of_any_type() -> None:
    """A type checker sees `executoin="compiled"` only where further keywords are no texts."""
    functions = [getattr(rk, name) for name in rk.__all__ if inspect.isfunction(getattr(rk, name))]
    functions += [getattr(rk.plot, name) for name in rk.plot.__all__]
    open_ones = {
        function.__name__: parameter.annotation
        for function in functions
        for parameter in inspect.signature(function).parameters.values()
        if parameter.kind is parameter.VAR_KEYWORD
    }
    assert {"predict", "sweep", "trace"} <= open_ones.keys()  # named sizes
    assert set(open_ones.values()) <= {"Given", "Given | range"}


@pytest.mark.parametrize("module", ["rooflinekit", "rooflinekit.cli.app", "rooflinekit.hardware.specs"])
def test_torch_is_not_imported(module: str) -> None:
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
