"""gloo's collectives between processes that torchrun starts stand beside their predictions."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_two_processes_measure_what_is_predicted() -> None:
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
        "benchmarks/clusters/gloo_torchrun.py", "--sizes", "4KiB,1MiB", "--rounds", "3",
    ]  # fmt: skip
    run = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert run.returncode == 0, run.stderr
    _, _, _, _, *lines = run.stdout.splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    names = ["all-reduce", "all-gather", "broadcast"]
    assert [(name, int(size)) for name, size, *_ in rows] == [(n, size) for size in (4096, 2**20) for n in names]
    for _, _, measured, predicted, interval, ratio in rows:
        low, high = map(float, interval.split(" to "))
        assert 0 < low < float(predicted) < high
        assert float(measured) > 0
        assert float(ratio) > 0
    few, many = ([float(row[3]) for row in part] for part in (rows[:3], rows[3:]))
    assert all(a < b for a, b in zip(few, many, strict=True))  # more bytes take longer
