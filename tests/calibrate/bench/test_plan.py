"""Plans: the shipped ones, what their YAML means, and one clear error for each that is wrong."""

from pathlib import Path

import pytest
from refusals import refused

from rooflinekit.calibrate.bench.plan import load_plan, plan_names
from rooflinekit.calibrate.hosts.ops import HOST_OPS
from rooflinekit.errors import InputError, SpecError

PART = """
  warmup: 2
  samples: 8
  precision: 0.05
  rounds: 2
"""
CASES = """
  cases:
    - op: add
      dtypes: [fp32, fp16]
      sizes: {rows: {from: 1, to: 100, count: 3}, cols: [8, 16]}
    - op: mm
      dtypes: [fp32]
      sizes: {m: 4, n: 4, k: 4}
"""


def plan(tmp_path: Path, cases: str = CASES, part: str = PART, kind: str = "cuda") -> str:
    file = tmp_path / "mine.yaml"
    file.write_text(f"schema: 1\nname: mine\n{kind}:{part}{cases}")
    return str(file)


def test_every_combination(tmp_path: Path) -> None:
    found = load_plan(plan(tmp_path), "cuda")
    assert (found.name, found.kind, found.warmup, found.samples, found.rounds) == ("mine", "cuda", 2, 8, 2)
    # 1 to 100 in three steps of equal factors: 1, 10, 100. 2 formats × 3 × 2, and the product.
    keys = {case.key for case in found.cases}
    assert len(found.cases) == len(keys) == 2 * 3 * 2 + 1
    assert {"add fp16 rows=10 cols=16", "add fp32 rows=100 cols=8", "mm fp32 m=4 n=4 k=4"} <= keys
    assert [case.key for case in found.cases] == [case.key for case in load_plan(plan(tmp_path), "cuda").cases]
    assert [case.key for case in found.cases] != sorted(keys)


def test_rounds_follow_each_other_and_only_chooses(tmp_path: Path) -> None:
    found = load_plan(plan(tmp_path), "cuda")
    units = found.units()
    assert [turn for _, turn in units] == [0] * 13 + [1] * 13
    assert [case.op for case, _ in found.units(["mm"])] == ["mm", "mm"]
    assert len(found.units(["elementwise"])) == 24  # a family; 12 sums in 2 rounds
    with refused(
        InputError,
        "--only 'mmm': plan mine has no such op or family; did you mean 'mm'? (it has add, elementwise, mm, product)",
    ):
        found.units(["mmm"])


def test_threads_are_of_the_cpu(tmp_path: Path) -> None:
    file = plan(tmp_path, part=PART + "  threads: [all, 1, 64]\n", kind="cpu")
    assert {case.threads for case in load_plan(file, "cpu", threads=4).cases} == {4, 1}
    assert {case.threads for case in load_plan(file, "cpu", threads=1).cases} == {1}
    assert "mm fp32 m=4 n=4 k=4 threads=4" in {case.key for case in load_plan(file, "cpu", threads=4).cases}


def test_ops_of_the_same_sizes_stand_together(tmp_path: Path) -> None:
    file = plan(tmp_path, cases="  cases: [{op: [add, relu], dtypes: [fp32, fp16], sizes: {rows: 2, cols: [3, 4]}}]\n")
    keys = {case.key for case in load_plan(file, "cuda").cases}
    assert keys == {
        f"{op} {dtype} rows=2 cols={cols}" for op in ("add", "relu") for dtype in ("fp32", "fp16") for cols in (3, 4)
    }


def test_the_digest_changes_with_what_is_measured(tmp_path: Path) -> None:
    before = load_plan(plan(tmp_path), "cuda").digest
    assert load_plan(plan(tmp_path), "cuda").digest == before
    assert load_plan(plan(tmp_path, part=PART.replace("samples: 8", "samples: 9")), "cuda").digest != before
    assert load_plan(plan(tmp_path, cases=CASES.replace("m: 4", "m: 5")), "cuda").digest != before


@pytest.mark.parametrize("name", ["quick", "standard", "full"])
@pytest.mark.parametrize("kind", ["cuda", "cpu"])
def test_shipped_plans(name: str, kind: str) -> None:
    found = load_plan(name, kind, threads=2)  # type: ignore[arg-type]
    families = {"product", "elementwise", "softmax", "normalization", "convolution", "attention"}
    families |= {"reduction", "movement", "stream", "issue", "sync", "collective", "rate"}
    families |= {"launch", "transfer"} if kind == "cuda" else set()
    assert {case.family for case in found.cases} == families
    ops = {case.op for case in found.cases}
    assert {"mm", "linear", "bmm", "add", "conv_fwd", "conv_bwd_data", "conv_bwd_weight"} <= ops
    # What the CPU does is measured once, whatever the number of threads; rates on all of them.
    if kind == "cpu":
        assert {case.threads for case in found.cases if case.op.startswith("issue")} == {1}
        assert {case.threads for case in found.cases if case.op in ("burst", "sustained")} == {2}
        assert {case.threads for case in found.cases if case.op == "mm"} == {1, 2}
    for case in found.cases:
        groups = case.sizes.get("groups", 1)
        assert case.sizes.get("c_in", 0) % groups == case.sizes.get("c_out", 0) % groups == 0
    # Heads of queries come in groups for each head of keys.
    heads = [(case.sizes["heads"], case.sizes["kv_heads"]) for case in found.cases if case.op == "attention"]
    assert all(queries % keys == 0 for queries, keys in heads)


def test_quick_is_smaller_than_standard_and_full_is_more_of_it() -> None:
    assert plan_names() == ("full", "quick", "standard")
    for kind in ("cuda", "cpu"):
        quick, standard, full = (load_plan(name, kind, 2).cases for name in ("quick", "standard", "full"))  # type: ignore[arg-type]
        assert 3 * len(quick) < len(standard) < len(full) / 2
        assert {case.key for case in standard} <= {case.key for case in full}


def test_the_page_about_plans_counts_their_cases() -> None:
    page = (Path(__file__).parents[3] / "docs" / "calibration.md").read_text()
    for name in plan_names():
        cuda, cpu = load_plan(name, "cuda"), load_plan(name, "cpu", threads=1)
        alone = sum(case.op in HOST_OPS for case in cpu.cases)
        row = next(line for line in page.splitlines() if line.startswith(f"| `{name}` |"))
        cells = [cell.strip() for cell in row.split("|")[2:-1]]
        assert cells[0] == str(len(cuda.cases))
        assert cells[1] == f"{len(cpu.cases) - alone} for each number of threads, {alone}"
        assert cells[2:] == [
            f"{cuda.samples}, {cpu.samples}",
            str(cuda.rounds),
            f"{100 * cuda.precision:g} %, {100 * cpu.precision:g} %",
        ]


EMPTY = "a list is empty; expected at least one op, one number format and one of each size"


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("op: ad, dtypes: [fp32], sizes: {}", "case 1: no op is called 'ad'; did you mean 'add'"),
        ("op: add, dtypes: [fp31], sizes: {}",
         "case 1: no number format is called 'fp31' (known: fp64, fp32, tf32, fp16, bf16, fp8, int8)"),
        ("op: add, dtypes: [fp32], sizes: {rows: 1}", "case 1: add lacks the size 'cols'; it has rows, cols"),
        ("op: add, dtypes: [fp32], sizes: {rows: 1, cols: 1, m: 2}",
         "case 1: add has no size 'm'; it has rows, cols"),
        ("op: add, dtypes: [fp32], sizes: {rows: 1, cols: [2, 0]}",
         "case 1: cols of add: expected a positive integer; got 0"),
        ("op: sync, dtypes: [fp32], sizes: {m: 1}", "case 1: sync has no size 'm'; it has none"),
        ("op: [add, mull], dtypes: [fp32], sizes: {rows: 1, cols: 1}",
         "case 1: no op is called 'mull'; did you mean 'mul'"),
        ("op: [], dtypes: [fp32]", f"case 1: {EMPTY}"),
        ("op: add, dtypes: [], sizes: {rows: 1, cols: 2}", f"case 1: {EMPTY}"),
        ("op: add, dtypes: [fp32], sizes: {rows: [], cols: 2}", f"case 1: {EMPTY}"),
        ("op: add, dtypes: fp32, sizes: {}", "cuda: cases: 0: dtypes: input should be a valid list; got 'fp32'"),
    ],
)  # fmt: skip
def test_wrong_cases(tmp_path: Path, case: str, message: str) -> None:
    file = plan(tmp_path, cases=f"  cases: [{{{case}}}]\n")
    with pytest.raises(SpecError) as caught:
        load_plan(file, "cuda")
    assert str(caught.value).startswith(f"{file}: {message}")


def test_a_plan_that_is_not_there(tmp_path: Path) -> None:
    with refused(InputError, "no plan 'quik'; did you mean 'quick'? (known: full, quick, standard, or a FILE.yaml)"):
        load_plan("quik", "cpu")
    with pytest.raises(SpecError, match=r"lost\.yaml: no such file$"):
        load_plan(str(tmp_path / "lost.yaml"), "cpu")
    with refused(SpecError, f"{tmp_path}/mine.yaml: has no cases for cpu; add a part 'cpu:'"):
        load_plan(plan(tmp_path), "cpu")
