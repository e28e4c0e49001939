"""What `rooflinekit` offers is what it says it offers, and asking for it loads no more than it needs."""

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


@pytest.mark.parametrize("module", ["rooflinekit", "rooflinekit.cli.app", "rooflinekit.hardware.specs"])
def test_torch_is_not_imported(module: str) -> None:
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
