"""What is printed does not hang on the order in which Python keeps texts in sets."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

DECODERS = Path(__file__).parents[2] / "examples/decoders"


@pytest.mark.parametrize(
    "words",
    [
        ["serve", DECODERS / "llama-3.1-8b.json", "--gpu", "nvidia-h100-sxm5-80gb", "--weights", "fp8", "--json"],
        ["serve", DECODERS / "minimax-m2.json", "--cluster", "dgx-h100", "--tp", "8", "--weights", "fp8"],
    ],
)
def test_the_same_under_every_hash_seed(words: list[object]) -> None:
    said = {
        subprocess.run(
            [sys.executable, "-m", "rooflinekit", *map(str, words)],
            capture_output=True, check=True, env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "7")
    }  # fmt: skip
    assert len(said) == 1
