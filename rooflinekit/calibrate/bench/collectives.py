"""Collectives between processes of this machine: gloo between CPUs, NCCL between its GPUs.

Each process is a `collective_worker`. They are started with the first case of their kind and wait for further ones;
when this process ends, however it ends, their input closes and they end too.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import rooflinekit
from rooflinekit.calibrate.bench.microbench import UnsupportedError
from rooflinekit.calibrate.bench.plan import Case
from rooflinekit.calibrate.bench.samples import LEAST, enough, repeats
from rooflinekit.errors import CampaignError

_RANKS = 2  # of gloo, where the case does not say
_SAMPLE_S = 2e-3
_MOST_CALLS = 500  # in a sample
#: gloo looks for the network that the machine's name stands for, which may be none.
_LOCAL = {"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {}
_WORKER = "rooflinekit.calibrate.bench.collective_worker"


class Groups:
    """The groups of processes that a campaign has needed so far. `devices`: how many GPUs there are."""

    def __init__(self, devices: int) -> None:
        self.devices = devices
        self.groups: dict[tuple[str, int], Group] = {}
        atexit.register(self.close)

    def of(self, case: Case) -> Group:
        """The group for a case. Raises UnsupportedError for more GPUs than there are, and where none can be started."""
        backend = case.op.partition("_")[0]
        ranks = case.sizes.get("ranks", 0) or (self.devices if backend == "nccl" else _RANKS)
        if backend == "nccl" and not 2 <= ranks <= self.devices:
            raise UnsupportedError(f"{case.op} needs {max(ranks, 2)} GPUs; PyTorch sees {self.devices}")
        found = self.groups.get((backend, ranks))
        if found is None or found.ended:
            found = self.groups[backend, ranks] = Group(backend, ranks)
        return found

    def close(self) -> None:
        """Ends all processes."""
        for group in self.groups.values():
            group.close()
        self.groups.clear()


class Group:
    """Processes that take part in collectives together."""

    def __init__(self, backend: str, ranks: int) -> None:
        self.ranks = ranks
        self.ended = False
        self.folder = tempfile.TemporaryDirectory(prefix="rooflinekit-", ignore_cleanup_errors=True)
        self.workers = [self._start(backend, rank) for rank in range(ranks)]
        try:
            self._answer()  # that all have met
        except BaseException:  # an interrupt: nobody would know of them
            for worker in self.workers:
                worker.kill()
            self.close()
            raise

    def _start(self, backend: str, rank: int) -> subprocess.Popen[str]:
        here = str(Path(rooflinekit.__file__).parents[1])
        paths = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH", "")]))
        store = f"{self.folder.name}/store"
        command = [sys.executable, "-m", _WORKER, backend, str(rank), str(self.ranks), store, str(os.getpid())]
        with open(f"{self.folder.name}/{rank}.txt", "w", encoding="utf-8") as errors:
            return subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
                stderr=errors,
                text=True,
                env={**_LOCAL, **os.environ, "PYTHONPATH": paths},
                start_new_session=True,  # an interrupt is this process's to handle
            )

    def samples(self, case: Case, warmup: int, most: int, precision: float) -> tuple[int, tuple[float, ...]]:
        """Calls in a sample, and seconds of one call by sample. Raises UnsupportedError for what fails."""
        first = self._ask(case, calls=1, samples=warmup + 3)
        inner = repeats(_SAMPLE_S, min(first[warmup:]), most=_MOST_CALLS)
        seconds: list[float] = []
        while len(seconds) < most and not enough(seconds, precision):
            seconds += self._ask(case, calls=inner, samples=min(LEAST, most - len(seconds)))
        return inner, tuple(seconds)

    def _ask(self, case: Case, *, calls: int, samples: int) -> list[float]:
        name = case.op.partition("_")[2]
        request = {"collective": name, "bytes": case.sizes["bytes"], "calls": calls, "samples": samples}
        for worker in self.workers:
            assert worker.stdin is not None
            try:
                print(json.dumps(request), file=worker.stdin, flush=True)
            except OSError as error:
                raise UnsupportedError(f"{case.op}: {self._reason()}") from error
        return [float(value) for value in self._answer()["seconds"]]

    def _answer(self) -> dict[str, Any]:
        first = self.workers[0].stdout
        assert first is not None
        line = first.readline()
        if not line.endswith("\n"):
            raise UnsupportedError(f"a process of the collective ended: {self._reason()}")
        found: dict[str, Any] = json.loads(line)
        return found

    def _reason(self) -> str:
        """What a process has said last before it ended. Raises CampaignError where it was made to end."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.workers[0].wait(1)  # its pipe may close a little earlier
        by = [-worker.returncode for worker in self.workers if (worker.poll() or 0) < 0]
        self.close(keep=True)
        if by:
            self.folder.cleanup()
            raise CampaignError(
                f"a process of a collective was ended by {signal.Signals(by[0]).name}; what was measured before is "
                "kept, the same command continues with this case, and --only can leave out its op"
            )
        said = [Path(f"{self.folder.name}/{rank}.txt").read_text(encoding="utf-8") for rank in range(self.ranks)]
        lines = [line for text in said for line in text.strip().splitlines()[-1:]]
        self.folder.cleanup()
        return (lines or ["it did not say why"])[0][:150]

    def close(self, *, keep: bool = False) -> None:
        """Ends the processes."""
        self.ended = True
        for worker in self.workers:
            for pipe in filter(None, (worker.stdin, worker.stdout)):
                with contextlib.suppress(OSError):  # it has ended by itself
                    pipe.close()
        for worker in self.workers:
            try:
                worker.wait(5)
            except subprocess.TimeoutExpired:
                worker.kill()
                worker.wait()
        if not keep:
            self.folder.cleanup()
