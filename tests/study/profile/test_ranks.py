"""Folders of traces, one a rank: whose is whose, and all as one step."""

from pathlib import Path

import pytest
from traces import document, launched, step, two_steps, write

from rooflinekit.errors import InputError
from rooflinekit.study.profile.profile import Profile, rank_files, trace_files
from rooflinekit.study.transfer.evidence import Evidence


def one_kernel(micros: float, name: str = "gemm") -> dict[str, object]:
    """A step of 100 µs with one kernel."""
    return document(step(1, 0, 100), *launched(name, 5, 10, 10 + micros, 1))


@pytest.mark.parametrize(
    "names",
    [
        ("rank0.json.gz", "rank1.json.gz"),
        ("model_rank_0.json", "model_rank_1.json"),
        ("trace-rank-0.pt.trace.json.gz", "trace-rank-1.pt.trace.json.gz"),
        ("rank0/trace.json", "rank1/trace.json"),
    ],
)
def test_ranks_are_told_by_names(tmp_path: Path, names: tuple[str, str]) -> None:
    for name, micros in zip(names, (40, 60), strict=True):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write(one_kernel(micros), tmp_path / name)
    (tmp_path / "notes.txt").write_text("no trace")
    assert [file.relative_to(tmp_path).as_posix() for file in rank_files(tmp_path).values()] == list(names)
    assert Profile.read(tmp_path, rank=1).busy_s == pytest.approx(60e-6)


def test_all_ranks_are_one_step_in_the_mean(tmp_path: Path) -> None:
    for rank, micros in enumerate((40, 60, 80)):
        write(one_kernel(micros), tmp_path / f"rank{rank}.json")
    seen: list[float] = []
    found = Profile.read(tmp_path, progress=seen.append)
    assert (found.busy_s, found.wall_s, found.devices) == (pytest.approx(60e-6), pytest.approx(100e-6), 3)
    assert [(k.name, k.count, k.seconds) for k in found.kernels] == [("gemm", 1, pytest.approx(60e-6))]
    assert found.file == f"{tmp_path.name} (3 ranks)"
    assert found.device == "NVIDIA L4"
    assert seen == sorted(seen)
    assert all(0 <= share <= 1 for share in seen)


def test_a_trace_says_its_rank_itself(tmp_path: Path) -> None:
    for rank in (5, 3):
        head = {"distributedInfo": {"backend": "nccl", "rank": rank, "world_size": 8}}
        write(head | two_steps(), tmp_path / f"host_{rank * 1117}.1699.pt.trace.json.gz")
    assert list(rank_files(tmp_path)) == [3, 5]
    assert "host_3351" in trace_files(tmp_path, 3)[0].name
    with pytest.raises(InputError, match=r"rank 4: .* has no trace of it, but of 3, 5"):
        trace_files(tmp_path, 4)
    with pytest.raises(InputError, match="is the trace of rank 3"):
        trace_files(trace_files(tmp_path, 3)[0], 5)


def test_folders_that_do_not_say(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the folder has none"):
        rank_files(tmp_path)
    write(two_steps(), tmp_path / "a.json")
    assert list(rank_files(tmp_path)) == [0]
    write(two_steps(), tmp_path / "b.json")
    with pytest.raises(InputError, match=r"a\.json: neither its name nor the trace says which rank it is"):
        rank_files(tmp_path)
    for name in ("a.json", "b.json"):
        (tmp_path / name).rename(tmp_path / f"rank_0_{name}")
    with pytest.raises(InputError, match=r"rank_0_a\.json and rank_0_b\.json are both of rank 0"):
        rank_files(tmp_path)


def test_a_step_with_communication_tells_of_operators_alone(tmp_path: Path) -> None:
    write(one_kernel(40), tmp_path / "rank0.json")
    assert Evidence.of(Profile.read(tmp_path)).seconds == pytest.approx(100e-6)
    write(one_kernel(40, "ncclDevKernel_AllReduce_Sum_f32_RING_LL(…)"), tmp_path / "rank0.json")
    found = Evidence.of(Profile.read(tmp_path))
    assert found.seconds is None
    assert "holds communication" in found.source
