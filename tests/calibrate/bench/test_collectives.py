"""Collectives between two processes of this machine, and what is said where there are none."""

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from programs import line_of, lives, started
from records import case
from refusals import refused

from rooflinekit.calibrate.bench.collectives import Groups
from rooflinekit.calibrate.bench.microbench import UnsupportedError
from rooflinekit.calibrate.hosts.ops import COLLECTIVES
from rooflinekit.errors import CampaignError


@pytest.fixture(scope="module")
def groups() -> Iterator[Groups]:
    made = Groups(devices=1)
    yield made
    made.close()


@pytest.mark.parametrize("name", COLLECTIVES)
def test_gloo(name: str, groups: Groups) -> None:
    made = case(f"gloo_{name}", bytes=4096)
    group = groups.of(made)
    assert groups.of(case("gloo_all_reduce", bytes=8)) is group  # the processes stay
    inner, seconds = group.samples(made, 1, 7, 1e-9)
    assert (group.ranks, len(seconds)) == (2, 7)
    assert inner >= 1
    assert all(1e-7 < one < 10 for one in seconds)


@pytest.mark.parametrize(
    ("devices", "ranks", "message"),
    [
        (1, 0, "nccl_all_reduce needs 2 GPUs; PyTorch sees 1"),
        (0, 0, "nccl_all_reduce needs 2 GPUs; PyTorch sees 0"),
        (2, 4, "nccl_all_reduce needs 4 GPUs; PyTorch sees 2"),
    ],
)
def test_too_few_gpus(devices: int, ranks: int, message: str) -> None:
    with refused(UnsupportedError, message):
        Groups(devices=devices).of(case("nccl_all_reduce", bytes=4, **({"ranks": ranks} if ranks else {})))


def test_a_process_that_ends_is_told_and_replaced(groups: Groups) -> None:
    made = case("gloo_all_reduce", bytes=64)
    group = groups.of(made)
    for worker in group.workers:
        os.kill(worker.pid, signal.SIGKILL)
        worker.wait(30)
    with refused(
        CampaignError,
        "a process of a collective was ended by SIGKILL; what was measured before is kept, the same command continues "
        "with this case, and --only can leave out its op",
    ):  # it says nothing of the case, which is to be measured again
        group.samples(made, 1, 5, 0.5)
    another = groups.of(made)
    assert another is not group
    assert len(another.samples(made, 1, 5, 0.5)[1]) == 5


def test_processes_end_with_their_input(groups: Groups) -> None:
    group = groups.of(case("gloo_all_reduce", bytes=4))
    for worker in group.workers:
        worker.stdin.close()  # as it is when this process is killed
    assert [worker.wait(30) for worker in group.workers] == [0, 0]


#: Starts a group of which one never comes, so that the other waits for it. Says the folder, and who waits.
STARTS = """
import subprocess, time
from pathlib import Path
from rooflinekit.calibrate.bench import collectives
class Waits(collectives.Group):
    def _start(self, backend, rank):
        return super()._start(backend, rank) if rank == 0 else subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    def _answer(self):
        while not Path(f"{self.folder.name}/store").exists():
            time.sleep(0.05)
        print(self.folder.name, self.workers[0].pid, flush=True)
        super()._answer()
Waits("gloo", 2)
"""


def test_a_process_that_waits_for_others_ends_with_a_program_that_is_killed() -> None:
    with started([sys.executable, "-c", STARTS]) as program:
        folder, worker = line_of(program).split()
        program.kill()
    end = time.monotonic() + 30
    while lives(int(worker)) or Path(folder).exists():
        assert time.monotonic() < end
        time.sleep(0.05)
