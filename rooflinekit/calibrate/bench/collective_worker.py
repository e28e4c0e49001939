"""One process of a collective: takes requests from its input, line by line; the first process answers with seconds.

    python -m rooflinekit.calibrate.bench.collective_worker BACKEND RANK RANKS FILE PROGRAM

FILE: where the processes find each other, in a folder of its own. PROGRAM: the process that asks. One ends with its
input, whatever it is at: the program may be gone, and the others with it.
"""

from __future__ import annotations

import datetime
import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import torch
from torch import distributed

_PATIENCE = datetime.timedelta(seconds=60)
_GRACE_S = 2.0  # that a collective at work may take once nobody asks any more


def main(backend: str, rank: int, ranks: int, file: str, program: int) -> None:
    """Runs the collectives that are asked for on standard input, until it ends."""
    lines: SimpleQueue[str] = SimpleQueue()
    threading.Thread(target=_read, args=(lines, program, Path(file).parent), daemon=True).start()
    try:
        _take_part(backend, rank, ranks, file, lines)
    finally:
        _tidy(program, Path(file).parent)


def _take_part(backend: str, rank: int, ranks: int, file: str, lines: SimpleQueue[str]) -> None:
    torch.set_num_threads(1)
    gpu = backend == "nccl"
    if gpu:
        torch.cuda.set_device(rank)
    store = distributed.FileStore(file, ranks)  # type: ignore[attr-defined]
    distributed.init_process_group(backend, store=store, rank=rank, world_size=ranks, timeout=_PATIENCE)
    device = torch.device("cuda", rank) if gpu else torch.device("cpu")
    distributed.barrier()
    _answer(rank, {"ready": ranks})
    while line := lines.get():
        _answer(rank, {"seconds": _samples(json.loads(line), device)})
    distributed.destroy_process_group()


def _read(lines: SimpleQueue[str], program: int, folder: Path) -> None:
    """Hands on the input; some time after its end the process ends too."""
    for line in sys.stdin:
        lines.put(line)
    lines.put("")
    time.sleep(_GRACE_S)
    _tidy(program, folder)
    os._exit(1)


def _tidy(program: int, folder: Path) -> None:
    """Takes the folder away where the program was killed, and cannot."""
    time.sleep(0.1)  # a process lets go of its pipes a little before its children are another's
    if os.getppid() != program:
        shutil.rmtree(folder, ignore_errors=True)


def _samples(request: dict[str, Any], device: torch.device) -> list[float]:
    call = _call(request["collective"], request["bytes"], device)
    found = []
    for _ in range(request["samples"]):
        distributed.barrier()
        _wait(device)
        start = time.perf_counter()
        for _ in range(request["calls"]):
            call()
        _wait(device)
        found.append((time.perf_counter() - start) / request["calls"])
    return found


def _call(name: str, size: int, device: torch.device) -> Callable[[], object]:
    x = torch.randn(max(1, size // 4), device=device)
    if name == "all_gather":
        parts = [torch.empty_like(x) for _ in range(distributed.get_world_size())]
        return lambda: distributed.all_gather(parts, x)
    if name == "broadcast":
        return lambda: distributed.broadcast(x, 0)
    x.zero_()  # sums of sums would grow without end
    return lambda: distributed.all_reduce(x)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _answer(rank: int, document: dict[str, Any]) -> None:
    if rank == 0:
        print(json.dumps(document), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], int(sys.argv[5]))
