"""`rooflinekit fit`, as a user meets it, on two GPUs that were measured in a minute."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import yaml
from command_line import Run, caller
from documents import checked
from refusals import refusal

from rooflinekit.api import calibrate as calibration_workflows
from rooflinekit.calibrate.fitting import folder as fit_folder
from rooflinekit.calibrate.fitting.refit import Refit
from rooflinekit.errors import SpecError
from rooflinekit.hardware import specs

# Sums of two fp32 tensors read 8 bytes an element and write 4. These GPUs stream at 80 and 85 % of 2039 and 1008 GB/s,
# behind a start of 2 µs.
SHARES = {"nvidia-a100-sxm4-80gb": (2.039e12, 0.80), "nvidia-rtx-4090": (1.008e12, 0.85)}


def write_campaign(folder: Path, gpu: str, bandwidth: float = 1e12, share: float = 0.8) -> None:
    lines = [f"# gpu: {gpu}", "# source: example.org/sums", "# licence: CC0", "# timing: profiler"]
    lines.append("op,dtype,rows,cols,seconds")
    # As many as a table counts for among many GPUs: of fewer, the constants stay nearer to those of all.
    for rows in range(4096, 4096 + 100 * 1280, 1280):
        lines.append(f"add,fp32,{rows},4096,{2e-6 + 12 * rows * 4096 / (share * bandwidth):.6g}")
    file = folder / gpu / "sums.csv"
    file.parent.mkdir(parents=True)
    file.write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def campaigns(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("measured") / "campaigns"
    for gpu, (bandwidth, share) in SHARES.items():
        write_campaign(folder, gpu, bandwidth, share)
    return folder


@pytest.fixture(scope="module")
def found(campaigns: Path) -> Refit:
    return calibration_workflows.fit(campaigns)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    monkeypatch.chdir(tmp_path)
    return partial(caller(monkeypatch, capsys), "fit")


def constants(file: Path) -> dict[str, float]:
    return {name: one["value"] for name, one in yaml.safe_load(file.read_text())["constants"].items()}


def row(out: str, name: str) -> list[list[str]]:
    return [line.split() for line in out.splitlines() if line.split()[:1] == [name]]


# --- the command ------------------------------------------------------------------------------------------------------


def test_writes_prints_and_removes(run: Run, campaigns: Path, tmp_path: Path) -> None:
    fits = tmp_path / "fits"
    fits.mkdir()
    (fits / "nvidia-t4.yaml").write_text(
        "# Constants of nvidia-t4 where they are told.\n# Made by `rooflinekit fit`.\n"
    )
    (fits / "energy.yaml").write_text("# Constants of power: what a board draws.\n# Made by `python benchmarks/…`.\n")
    (fits / "notes.yaml").write_text("mine: true\n")
    said = run("--campaigns", campaigns, "--out", "fits").answered()
    # The fit of a GPU without measurements goes, a file that no fit has made stays.
    assert sorted(file.name for file in fits.iterdir()) == [
        *("architecture-8.0.yaml", "architecture-8.9.yaml"),
        *("energy.yaml", "notes.yaml", "nvidia-a100-sxm4-80gb.yaml", "nvidia-rtx-4090.yaml", "priors.yaml"),
    ]
    assert (fits / "nvidia-rtx-4090.yaml").read_text().splitlines()[:3] == [
        "# Constants of nvidia-rtx-4090 where measurements tell them; for the rest, those of priors.yaml stand.",
        "# Made by `rooflinekit fit --campaigns campaigns`.",
        "schema: 2",
    ]
    assert (fits / "priors.yaml").read_text().splitlines()[:2] == [
        "# Constants of a GPU that nobody has measured.",
        "# Made by `rooflinekit fit --campaigns campaigns`.",
    ]
    for gpu, (_, share) in SHARES.items():
        assert constants(fits / f"{gpu}.yaml")["memory_share"] == pytest.approx(share, rel=0.01)
    # No measurement is of products: their constants are those from which the fit starts.
    assert "issue_share" not in constants(fits / "nvidia-rtx-4090.yaml")
    assert constants(fits / "priors.yaml")["issue_share"] == 0.9

    assert said.splitlines()[0] == "200 measurements on 2 GPUs: nvidia-a100-sxm4-80gb, nvidia-rtx-4090"
    unmeasured, *own = row(said, "memory_share")
    assert unmeasured[6:] == ["calibration/campaigns,", "all", "GPUs"]
    for gpu, (_, share) in SHARES.items():
        *_, one = (one for one in own if one[-1] == gpu)  # after that of its architecture
        assert float(one[1]) == pytest.approx(share, rel=0.01)
        assert (one[2], one[5]) == ("±", "1")
    assert " ".join(row(said, "issue_share")[0][6:]) == "starting point of the fit; no measurement tells it"
    # Noise-free; what all kernels are off together is never taken for less than 3 %.
    assert row(said, "elementwise")[0][-6:] == ["0%", "/", "3%", "0%", "/", "3%"]
    assert said.splitlines()[-2:] == ["fits written to fits", "removed, as no campaign is of them: nvidia-t4.yaml"]


def test_check_passes_on_what_fit_wrote_and_names_what_was_changed(
    run: Run, campaigns: Path, found: Refit, tmp_path: Path
) -> None:
    fits = tmp_path / "fits"
    fit_folder.write_folder(found, fits, "rooflinekit fit")
    before = {file.name: file.read_bytes() for file in fits.iterdir()}
    result = run("--campaigns", campaigns, "--out", "fits", "--check")
    assert (result.status, result.out, result.err) == (0, "fits: as the campaigns give them\n", "")
    assert {file.name: file.read_bytes() for file in fits.iterdir()} == before
    document = yaml.safe_load((fits / "nvidia-rtx-4090.yaml").read_text())
    document["constants"]["memory_share"]["value"] = 0.7
    (fits / "nvidia-rtx-4090.yaml").write_text("# Constants of nvidia-rtx-4090\n" + yaml.safe_dump(document))
    result = run("--campaigns", campaigns, "--out", "fits", "--check")
    wanted = found.gpus["nvidia-rtx-4090"].value("memory_share")
    assert (result.status, result.err) == (1, "")
    assert result.out == f"fits/nvidia-rtx-4090.yaml: memory_share is 0.7; the campaigns give {wanted:.4g}\n"


def test_fits_as_a_document(run: Run, found: Refit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration_workflows, "fit", lambda *_, **__: found)
    (tmp_path / "campaigns").mkdir()
    own = ("--campaigns", "campaigns", "--out", "fits", "--json")
    document = checked("fit", run(*own).out)
    assert (document["written"], document["measurements"]) == (True, 200)
    wanted = found.gpus["nvidia-rtx-4090"].value("memory_share")
    assert document["gpus"]["nvidia-rtx-4090"]["constants"]["memory_share"]["value"] == wanted
    again = checked("fit", run(*own, "--check").out)
    assert (again["written"], again["difference"]) == (False, None)


def test_collectives_are_fitted_beside(run: Run, found: Refit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration_workflows, "fit", lambda *_, **__: found)
    links = tmp_path / "campaigns" / "links"
    links.mkdir(parents=True)
    lines = ["# cluster: dgx-a100", "# source: made up", "# licence: CC0", "# timing: stream"]
    lines.append("collective,ranks,format,bytes,seconds")
    # 10 µs, and 3/4 of the result at 225 of the 300 GB/s.
    lines += [f"all-gather,4,fp16,{size},{10e-6 + 0.75 * size / 225e9:.6g}" for size in (2**10, 2**20, 2**26, 2**30)]
    (links / "mine.csv").write_text("\n".join(lines) + "\n")
    assert run("--campaigns", "campaigns", "--out", "fits").status == 0
    file = tmp_path / "fits" / "links.yaml"
    assert file.read_text().startswith(
        "# Link constants: collectives of any cluster.\n# Made by `rooflinekit fit --cam"
    )
    # Four numbers do not tell pieces and the copy from the share, but that it is neither a half nor more than all.
    assert 0.6 < constants(file)["share nvlink-3"] <= 1.0
    result = run("--campaigns", "campaigns", "--out", "fits", "--check")
    assert (result.status, result.out) == (0, "fits: as the campaigns give them\n")
    file.write_text(file.read_text().replace("share nvlink-3", "hop nvlink-1"))
    assert run("--campaigns", "campaigns", "--out", "fits", "--check").status == 1
    (links / "mine.csv").write_text("# cluster: dgx-a100\n")
    run("--campaigns", "campaigns", "--out", "fits").refused(has="campaigns/links/mine.csv: not a campaign")


# --- what can be wrong ------------------------------------------------------------------------------------------------


def test_wrong_arguments(run: Run, campaigns: Path, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    (tmp_path / "empty").mkdir()
    for args, message in (
        (("--campaigns", "mine"), "--campaigns mine: name the folder of their fits with --out; otherwise the fits in "
         "use, of other measurements, would be replaced"),
        (("--campaigns", "mine", "--out", "fits"), "mine: expected campaign files (*.csv); found none"),
        (("--campaigns", "empty", "--out", "fits"), "empty: expected campaign files (*.csv); found none"),
        (("--campaigns", campaigns, "--out", "taken"), "taken: cannot be written: Not a directory"),
        (("--campaigns", campaigns, "--out", "taken/fits"), "taken/fits: cannot be written: Not a directory"),
    ):  # fmt: skip
        run(*args).refused(f"{message}\n")
    assert not (tmp_path / "fits").exists()


def test_an_unknown_gpu(run: Run, tmp_path: Path) -> None:
    write_campaign(tmp_path / "campaigns", "nobody-x1")
    run("--campaigns", "campaigns", "--out", "fits").refused("unknown device 'nobody-x1'")


def test_an_installation_has_no_campaigns(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(fit_folder, "data_dir", lambda name: tmp_path)  # as in a wheel: fits alone
    run("--out", "fits").refused(
        "rooflinekit is installed without the measurements that its fits rest on: pass --campaigns DIR, such as "
        "calibration/campaigns of a checkout\n"
    )


def test_a_checkout_has_them() -> None:
    assert fit_folder.default_campaigns() == specs.data_dir("calibration") / "campaigns"
    assert fit_folder.default_folder() == specs.data_dir("calibration") / "fits"


# --- comparison -------------------------------------------------------------------------------------------------------


def changed(folder: Path, edit: Callable[[dict[str, Any]], object], name: str = "nvidia-rtx-4090") -> None:
    file = folder / f"{name}.yaml"
    document = yaml.safe_load(file.read_text())
    edit(document)
    file.write_text("# Constants of it\n" + yaml.safe_dump(document))


def scaled(group: str, name: str, part: str, factor: float) -> Callable[[dict[str, Any]], object]:
    return lambda d: d[group][name].update({part: d[group][name][part] * factor})


@pytest.mark.parametrize(
    ("edit", "starts"),
    [
        (scaled("constants", "memory_share", "value", 1.004), ""),
        (scaled("constants", "memory_share", "value", 1.006), "memory_share is 0.8"),
        (scaled("constants", "memory_share", "value", 0.994), "memory_share is 0.8"),
        (scaled("constants", "memory_share", "stderr", 1.04), ""),
        (scaled("constants", "memory_share", "stderr", 1.07), "standard error of memory_share is 0.0"),
        (scaled("spreads", "elementwise", "systematic", 1.01),
         "systematic spread of elementwise is 0.03"),
        (lambda d: d["constants"].pop("memory_share"), "memory_share is missing; the campaigns give 0.8"),
        (lambda d: d["constants"].update(overlap={"value": 3.0, "stderr": 0.1, "source": ""}),
         "overlap is 3; the campaigns do not tell it"),
    ],
)  # fmt: skip
def test_a_number_that_differs(
    found: Refit, tmp_path: Path, edit: Callable[[dict[str, Any]], object], starts: str
) -> None:
    fit_folder.write_folder(found, tmp_path, "rooflinekit fit")
    changed(tmp_path, edit)
    difference = fit_folder.first_difference(found, tmp_path)
    assert difference.startswith(f"{tmp_path}/nvidia-rtx-4090.yaml: {starts}") if starts else difference == ""


def test_correlations(found: Refit, tmp_path: Path) -> None:
    related = replace(found.priors, correlations=MappingProxyType({"memory_share, overlap": -0.5}))
    related_refit = replace(found, priors=related)
    fit_folder.write_folder(related_refit, tmp_path, "rooflinekit fit")
    assert fit_folder.first_difference(related_refit, tmp_path) == ""
    for value, differs in ((-0.46, False), (-0.56, True)):
        changed(tmp_path, lambda d, r=value: d["correlations"].update({"memory_share, overlap": r}), "priors")
        expected = f"{tmp_path}/priors.yaml: correlation of memory_share, overlap is {value}; the campaigns give -0.5"
        assert fit_folder.first_difference(related_refit, tmp_path) == (expected if differs else "")


def test_a_file_that_is_missing_or_too_many_or_no_fit(found: Refit, tmp_path: Path) -> None:
    fit_folder.write_folder(found, tmp_path, "rooflinekit fit")
    (tmp_path / "nvidia-rtx-4090.yaml").rename(tmp_path / "nvidia-t4.yaml")
    assert fit_folder.first_difference(found, tmp_path) == f"{tmp_path}/nvidia-rtx-4090.yaml is missing"
    fit_folder.write_fit(found.gpus["nvidia-rtx-4090"], tmp_path / "nvidia-rtx-4090.yaml", "Constants of it")
    assert fit_folder.first_difference(found, tmp_path) == f"{tmp_path}/nvidia-t4.yaml: no campaign is of nvidia-t4"
    (tmp_path / "nvidia-rtx-4090.yaml").write_text("# Constants of it\nconstants: {memory_share: 1}\nspreads: {}\n")
    said = refusal(SpecError, fit_folder.first_difference, found, tmp_path)
    assert said.startswith(f"{tmp_path}/nvidia-rtx-4090.yaml: name: the key is missing (and ")
