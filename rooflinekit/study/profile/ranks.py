"""Traces of several ranks in a folder: which file is whose, and one of them or all of them as one step."""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

from rooflinekit.calibrate.local_hardware.run_record import KernelTime, median_step
from rooflinekit.errors import InputError
from rooflinekit.study.profile.file import Progress, rank_in
from rooflinekit.study.profile.profile import Profile

_TRACES = re.compile(r"\.json(\.gz)?$", re.IGNORECASE)
#: As HTA, TraceLens and people name them: rank0.json.gz, model_rank_0.json, rank-12.pt.trace.json, rank3/trace.json.
_RANK = re.compile(r"(?<![a-z])rank[-_. ]?(\d+)(?!\d)", re.IGNORECASE)


def rank_files(folder: Path) -> dict[int, Path]:
    """The trace of each rank: by the name of its file, else by what the trace itself says.

    A folder with a single trace that says nothing is of rank 0. Raises InputError for a folder without traces, for one
    whose rank nothing tells, and for two of one rank.
    """
    below = (*folder.glob("*"), *folder.glob("*/*"))
    files = sorted(file for file in below if file.is_file() and _TRACES.search(file.name))
    if not files:
        raise InputError(f"{folder}: expected traces of torch.profiler (.json, .json.gz); the folder has none")
    found: dict[int, Path] = {}
    for file in files:
        rank = _rank_of(file, file.relative_to(folder).as_posix())
        if rank is None and len(files) == 1:
            rank = 0
        if rank is None:
            raise InputError(f"{file}: neither its name nor the trace says which rank it is; call it rank0.json, …")
        if rank in found:
            raise InputError(f"{folder}: {found[rank].name} and {file.name} are both of rank {rank}; move one away")
        found[rank] = file
    return dict(sorted(found.items()))


def trace_files(path: str | Path, rank: int | None = None) -> list[Path]:
    """The traces that are meant: a file itself; of a folder that of one rank, or all.

    "sample" is a small trace that is shipped: three training steps of a small network on a CPU. Raises InputError for
    no rank.
    """
    path = Path(path)
    if str(path) == "sample" and not os.path.exists(path):
        path = Path(__file__).with_name("sample.json.gz")
    if not os.path.isdir(path):
        own = _rank_of(path, path.name) if rank is not None and os.path.isfile(path) else rank
        if own not in (rank, None):
            raise InputError(f"rank {rank}: {path.name} is the trace of rank {own}")
        return [path]
    found = rank_files(path)
    if rank is not None and rank not in found:
        listed = ", ".join(map(str, found))
        raise InputError(f"rank {rank}: {path} has no trace of it, but of {listed}")
    return list(found.values()) if rank is None else [found[rank]]


def _rank_of(file: Path, name: str) -> int | None:
    named = _RANK.findall(name)
    return int(named[-1]) if named else rank_in(file)


def read_profile(
    path: str | Path, *, rank: int | None = None, mark: str | None = None, progress: Progress | None = None
) -> Profile:
    """The steps of a trace, or of a folder of them: of one rank, or in the mean over all.

    mark: see `Profile.read`. Raises what that and `rank_files` raise.
    """
    files = trace_files(path, rank)
    read = [Profile.read(file, mark=mark, progress=part(progress, i, len(files))) for i, file in enumerate(files)]
    return read[0] if len(read) == 1 else _together(Path(path).name, read)


def part(progress: Progress | None, place: int, count: int) -> Progress | None:
    """The progress of one of so many files, as that of all."""
    return None if progress is None else lambda share: progress((place + share) / count)


#: Of a step in the mean over ranks.
_MEANS = ("wall_s", "busy_s", "gaps", "late_s", "unknown_s", "launched")


def _together(folder: str, ranks: Sequence[Profile]) -> Profile:
    named = {one.device for one in ranks}
    means: dict[str, Any] = {name: fmean(getattr(one, name) for one in ranks) for name in _MEANS}
    return replace(
        ranks[0],
        file=f"{folder} ({len(ranks)} ranks)",
        steps=min(one.steps for one in ranks),
        device=named.pop() if len(named) == 1 else "",
        devices=sum(one.devices for one in ranks),
        median_s=median(one.median_s for one in ranks),
        kernels=_kernels(ranks),
        ops=median_step([one.ops for one in ranks]),
        **means,
    )


def _kernels(ranks: Sequence[Profile]) -> tuple[KernelTime, ...]:
    """By name, in the mean over ranks, the longest together first."""
    seconds, counts = defaultdict[str, float](float), Counter[str]()
    for kernel in (kernel for one in ranks for kernel in one.kernels):
        seconds[kernel.name] += kernel.seconds / len(ranks)
        counts[kernel.name] += kernel.count
    order = sorted(seconds, key=lambda name: (-seconds[name], name))
    return tuple(KernelTime(name=name, count=round(counts[name] / len(ranks)), seconds=seconds[name]) for name in order)
