"""Sweeps that are killed at any moment, again and again: the same rows, and nothing beside them."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
from programs import line_of, started
from small_sweeps import GPUS, NAMES, check, ordered, read

import rooflinekit as rk
from rooflinekit.api import predict as workflows
from rooflinekit.hardware.specs import DEFAULT_HOST
from rooflinekit.study.sweep import plan as sweep_plan
from rooflinekit.study.sweep.points import Setting

DRIVER = """
import os, sys, traceback, warnings
from pathlib import Path
from rooflinekit.hardware.specs import DEFAULT_HOST
from rooflinekit.study.sweep import plan as sweep_plan
from rooflinekit.study.sweep.run import run_to_file
sweep_plan.BLOCK = sweep_plan._ROWS = 10
warnings.simplefilter("always")
graph, settings = sweep_plan.opened(Path(sys.argv[1]).read_bytes())
gpus = {one.machine.name: {"machine": one.machine} for one in settings}
ways = {str(one.execution): {"execution": one.execution} for one in settings}
axes = [sweep_plan.Axis(name="gpu", choices=gpus), sweep_plan.Axis(name="execution", choices=ways)]
plan = sweep_plan.plan_of(axes, {"graph": graph, "host": settings[0].host}, {"batch": range(1, 26)})
for piece in plan.pieces(): piece.predict()  # what is loaded late is there
while line := sys.stdin.readline():
    out, workers = line.split()
    number = os.fork()
    if not number:
        try:
            run_to_file(plan, Path(out), executor=None, workers=int(workers), progress=None)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    print(number, flush=True)
    sys.stdin.readline()  # until it is asked for, its number stays its own
    print(os.waitpid(number, 0)[1], flush=True)
"""


@pytest.mark.parametrize("name", NAMES[:2])  # csv and json keep their pieces alike
@pytest.mark.parametrize("kills", [5, pytest.param(50, marks=pytest.mark.slow)])
def test_killed_again_and_again(tmp_path: Path, graph: rk.Graph, rows: pd.DataFrame, name: str, kills: int) -> None:
    host, machines = rk.load_host(DEFAULT_HOST), workflows.machines_of(GPUS)
    ways = [rk.Execution(), rk.Execution(backend="compiled")]
    settings = [Setting(machine=machine, host=host, execution=way) for machine in machines for way in ways]
    given, errors, out = tmp_path / "given", tmp_path / "errors", tmp_path / "place" / name
    given.write_bytes(sweep_plan.packed(graph, settings))
    out.parent.mkdir()
    draw, killed, whole, between, status = random.Random(kills), 0, 0, 0, 0
    command = [sys.executable, "-c", DRIVER, str(given)]
    with (
        errors.open("w") as err,
        started(command, stdin=subprocess.PIPE, stderr=err) as runs,
    ):

        def start() -> int:
            print(out, draw.choice([1, 1, 2]), file=runs.stdin, flush=True)
            return int(line_of(runs))

        def ended() -> int:
            print(file=runs.stdin, flush=True)
            return int(line_of(runs))

        start()
        begun = time.monotonic()
        assert ended() == 0
        lasts = time.monotonic() - begun
        check(out, rows)
        while killed < kills:
            if status == 0:
                shutil.rmtree(out) if out.is_dir() else out.unlink()
            before = out.is_file()
            process = start()
            # Most runs are to get on by some pieces, some to reach their end, where files are put together.
            time.sleep(draw.uniform(0, lasts * draw.choice([0.1, 0.3, 1.0])))
            os.kill(process, signal.SIGKILL)
            status = ended()
            if status == 0:
                check(out, rows)
                whole += 1
                continue
            killed += 1
            if out.is_file() and not before:  # killed while pieces were taken away
                between += 1
                pd.testing.assert_frame_equal(read(out), ordered(rows), rtol=1e-12, check_dtype=False)
                if draw.random() < 0.5:
                    out.unlink()
        start()
        assert ended() == 0
        runs.stdin.close()
    check(out, rows)
    print(f"{name}: {killed} kills, {between} of them beside a result, {whole} runs were quicker")  # shown with -rP
    assert errors.read_text() == ""  # no traceback, and no piece was ever found damaged
