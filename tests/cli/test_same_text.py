"""What is printed does not hang on the order in which Python keeps texts in sets."""

import os
import subprocess
import sys

CALLS = (
    "serve llama-3.1-8b --gpu nvidia-h100-sxm5-80gb --weights fp8 --json",
    "serve minimax-m2 --cluster dgx-h100 --tp 8 --weights fp8",
)
#: One process for all calls: an order is that of the whole process.
PROGRAM = """
import sys
from rooflinekit.cli.app import main
for call in sys.argv[1:]:
    sys.argv = ["rooflinekit", *call.split()]
    try:
        main()
    except SystemExit as end:
        assert not end.code, call
    print("end of", call)
"""


def test_the_same_under_every_hash_seed() -> None:
    said = {
        subprocess.run(
            [sys.executable, "-c", PROGRAM, *CALLS], capture_output=True, text=True, check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "7")
    }  # fmt: skip
    assert len(said) == 1
    assert said.pop().count("end of serve") == len(CALLS)
