"""The constants that rooflinekit ships with: of every measured GPU, in their ranges, and what the campaigns give."""

import functools
from collections.abc import Iterable
from pathlib import Path

import pytest

from rooflinekit.calibrate.campaigns.campaign import Campaign, load_campaigns
from rooflinekit.calibrate.fitting.constants import CONSTANTS, STAGES
from rooflinekit.calibrate.fitting.files import (
    CPUS,
    ENERGY,
    LINKS,
    PRIORS,
    architecture_of,
    constants_for,
    load_constants,
)
from rooflinekit.calibrate.fitting.folder import default_campaigns
from rooflinekit.calibrate.fitting.hierarchical_fit import fit
from rooflinekit.calibrate.fitting.observations import Observations, observations_of, without_faults
from rooflinekit.calibrate.fitting.refit import machines_of
from rooflinekit.hardware.specs import data_dir, device_names, load_device
from rooflinekit.timing.families import ALL, MIOPEN_EMULATED
from rooflinekit.timing.kernel_batch import KernelBatch, Products
from rooflinekit.timing.machine import Machine
from rooflinekit.timing.roofline import time_work

ROOT = Path(str(data_dir("calibration")))
FITS = sorted(file.stem for file in (ROOT / "fits").glob("*.yaml"))
ARCHITECTURES = [name for name in FITS if name.startswith("architecture-") and name != CPUS]
#: Of links: test_links.py; of energy: test_energy.py.
GPUS = [name for name in FITS if name not in (PRIORS, LINKS, ENERGY, CPUS, *ARCHITECTURES)]


@functools.cache
def campaigns() -> tuple[Campaign, ...]:
    return load_campaigns(default_campaigns())


@pytest.mark.parametrize("gpu", ["", *GPUS, *ARCHITECTURES])
def test_constants_lie_in_their_ranges_and_say_where_they_come_from(gpu: str) -> None:
    found = load_constants(gpu)
    assert found.name == (gpu or PRIORS)
    assert list(found.constants) == list(CONSTANTS)
    for name, constant in found.constants.items():
        about = CONSTANTS[name]
        # files keep four digits
        assert about.low * 0.9995 <= constant.value <= about.high * 1.0005, name
        assert (constant.unit, constant.meaning) == (about.unit, about.meaning)
        assert constant.source
        assert 0 < constant.stderr < 2, name


def test_fits_are_of_the_gpus_that_have_campaigns() -> None:
    assert sorted({campaign.gpu for campaign in campaigns()}) == GPUS
    assert sorted(folder.name for folder in (ROOT / "campaigns").iterdir() if folder.is_dir()) == sorted([*GPUS, LINKS])
    assert set(GPUS) <= set(device_names())


@pytest.mark.parametrize("gpu", GPUS)
def test_a_gpu_has_spreads_of_what_was_measured_on_it(gpu: str) -> None:
    found = load_constants(gpu)
    measured = {o.residuals for o in observations_of(c for c in campaigns() if c.gpu == gpu)}
    assert found.measured == measured
    for family, spread in found.spreads.items():
        # a format that a board has no units for runs by whichever of MIOpen's solvers takes it, up to 13 times as long
        assert 0 < spread.random < (1.6 if family == MIOPEN_EMULATED else 1.2)
        assert 0.03 <= spread.systematic < 1


def _relatives(gpu: str) -> set[str]:
    """The measured GPUs of its architecture."""
    kind = architecture_of(load_device(gpu))
    return {other for other in GPUS if other != gpu and architecture_of(load_device(other)) == kind}


def test_architectures_are_those_of_the_measured_gpus() -> None:
    assert set(ARCHITECTURES) == {architecture_of(load_device(gpu)) for gpu in GPUS}


def test_an_unmeasured_gpu_takes_after_its_architecture() -> None:
    # H200 is Hopper like H100, which was measured: nearer to it than to a GPU of any kind
    h200, h100, any_gpu = (constants_for(load_device(name)) if name else load_constants() for name in
                           ("nvidia-h200-sxm-141gb", "nvidia-h100-sxm5-80gb", ""))  # fmt: skip
    assert h200.name == "architecture-9.0"
    assert h200.measured == frozenset()
    for name in ("memory_share", "matrix_tile_loss"):
        between = sorted((h100.value(name), any_gpu.value(name)))
        assert between[0] < h200.value(name) < between[1]
        assert abs(h200.value(name) - h100.value(name)) < abs(any_gpu.value(name) - h100.value(name)) / 2
    assert constants_for(load_device("nvidia-rtx-5090")).name == PRIORS  # no GeForce Blackwell was measured


@pytest.mark.parametrize("gpu", GPUS)
def test_own_constants_name_their_campaigns(gpu: str) -> None:
    own, priors = load_constants(gpu).constants, load_constants().constants
    for name in CONSTANTS:
        _, _, sources = own[name].source.partition("calibration/campaigns: ")
        told = sources.split(", ")
        assert own[name] == priors[name] or told == [gpu] or set(told) <= _relatives(gpu), name
        # what is the same for all GPUs is not theirs
        assert own[name] == priors[name] or CONSTANTS[name].between > 0


def test_any_gpu_has_spreads_of_every_family() -> None:
    families = {o.residuals for o in observations_of(campaigns())}
    assert set(load_constants().spreads) >= families | set(ALL)


def test_an_unmeasured_gpu_is_less_sure_than_a_measured_one() -> None:
    priors = load_constants().constants
    for gpu in GPUS:
        for name, constant in load_constants(gpu).constants.items():
            assert constant.stderr <= priors[name].stderr * 1.001


def test_every_device_can_be_timed_with_its_constants() -> None:
    """An fp32 product and 300 MB of traffic: no faster than the datasheet, nor far from it.

    30 MB of it are written: results from 32 MiB on cost a CPU the finding of their pages too.
    """
    for name in device_names():
        device = load_device(name, allow_draft=True)
        machine = Machine.of(device, constants_for(device))
        work = KernelBatch.of(2, products=Products.of([0], m=4096, n=4096, k=4096), read_bytes=2.7e8, write_bytes=3e7)
        times = time_work(work, machine)
        peak = max(device.peak("fp32"), device.matrix_peak.get("fp32", 0.0))
        assert times.total_s[0] > 2 * 4096**3 / peak, name
        assert 3e8 / device.dram.bandwidth < times.total_s[1] < 4 * 3e8 / device.dram.bandwidth + 1e-4, name


# --- campaigns ------------------------------------------------------------------------------------------------------


def test_campaigns_say_where_they_come_from() -> None:
    for campaign in campaigns():
        assert campaign.source.startswith("github.com/")
        assert campaign.licence
        assert campaign.rows["seconds"].between(5e-7, 20).all()


def test_campaigns_are_compact() -> None:
    assert sum(file.stat().st_size for file in (ROOT / "campaigns").rglob("*.csv")) < 2e6


def test_measurements_are_hardly_repeated() -> None:
    """Sources time few sizes more than once; where they do, what they find differs by less than 40 %."""
    for campaign in campaigns():
        keys = [name for name in campaign.rows if name != "seconds"]
        groups = campaign.rows.groupby(keys, dropna=False)["seconds"]
        assert len(groups) > 0.85 * len(campaign.rows), campaign.source
        assert (groups.max() / groups.min()).max() < 1.4, campaign.source


# --- reproduced -----------------------------------------------------------------------------------------------------


def _observations(chosen: Iterable[Campaign]) -> tuple[list[Observations], dict[str, Machine]]:
    chosen = list(chosen)
    machines = machines_of(sorted({campaign.gpu for campaign in chosen}))
    counted = [without_faults(o, machines[o.gpu]) for o in observations_of(chosen)]
    return [o for o in counted if len(o) and not o.own], machines


@pytest.mark.slow
def test_the_shipped_constants_of_streams_are_what_the_campaigns_give() -> None:
    """The first stage alone, which rests on no other: streams, of all GPUs together.

    The same as in the files to the fourth digit, or to 1 % where another build of the libraries rounds otherwise.
    """
    stage = STAGES[0]
    chosen = [c for c in campaigns() if stage.ops & set(c.rows["op"]) and stage.dtypes & set(c.rows["dtype"])]
    observations, machines = _observations(chosen)
    solution = fit(observations, machines, [stage], by_count=True)
    refined = {name for later in STAGES[1:] for name in (*later.own, *later.constants)}  # from here on
    priors = load_constants()
    assert {name: solution.values()[name] for name in stage.constants} == pytest.approx(
        {name: priors.value(name) for name in stage.constants}, rel=0.01
    )
    for gpu in sorted({o.gpu for o in observations if o.op in stage.ops}):
        own = load_constants(gpu)
        for name in stage.constants:
            if name in refined or own.constants[name].source != f"calibration/campaigns: {gpu}":
                continue
            assert solution.values(gpu)[name] == pytest.approx(own.value(name), rel=0.01), (gpu, name)
