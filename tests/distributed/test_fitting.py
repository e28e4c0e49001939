"""What makes a step fit: everything that is tried, and the fastest of what fits."""

from dataclasses import replace

import pytest

import rooflinekit as rk
from rooflinekit.distributed import fitting
from rooflinekit.errors import InputError, SizeError
from rooflinekit.ir.graph import Origin, resized


@pytest.fixture(scope="module")
def tight(blocks: rk.Graph) -> object:
    # 262144 samples: each of the blocks' four ReLU results alone has 262144 · 256 · 4 bytes = 256 MiB
    device = rk.load_device("nvidia-rtx-3070")
    memory = device.dram.model_copy(update={"capacity": 1.25 * 2**30})
    return rk.fit_into(blocks, gpu=device.model_copy(update={"dram": memory}), batch=262144)


def test_the_best_fits_and_is_as_fast_as_any(tight: object) -> None:
    table = tight.table
    assert not table[table["combination"] == "as it is"]["fits"].item()
    fitting = table[table["fits"]]
    assert tight.best.name in set(fitting["combination"])
    assert tight.prediction.total_s <= 1.02 * fitting["total_s"].min()
    assert tight.prediction.fits
    assert table["total_s"].is_monotonic_increasing


def test_a_limit_of_memory_is_a_smaller_gpu(tight: object, blocks: rk.Graph) -> None:
    found = rk.fit_into(blocks, gpu="nvidia-rtx-3070", batch=262144, memory_limit="1.25 GiB")
    assert str(found) == str(tight)
    for limit in (-1, 9 * 2**30):  # a card of 8 GiB
        with pytest.raises(InputError, match=f"expected bytes above 0, up to the GPU's 8.00 GiB; got {limit}"):
            rk.fit_into(blocks, gpu="nvidia-rtx-3070", batch=64, memory_limit=limit)


def test_weights_that_are_too_large_end_the_search(blocks: rk.Graph) -> None:
    """Neither smaller parts nor checkpoints make room for weights, so each kind of optimizer's state is tried once."""
    found = rk.fit_into(blocks, gpu="nvidia-rtx-3070", batch=64, memory_limit="500 MiB")
    assert found.best is None
    assert {trial.prediction.savers.accumulate for trial in found.trials} == {1}


def test_no_parts_of_an_absurd_batch_are_predicted(blocks: rk.Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part of 2^40 / 32 samples of 64 numbers is 8 TiB, whatever else is done with it."""
    predicted = []
    plan = fitting.plan
    monkeypatch.setattr(fitting, "plan", lambda *args, **kw: predicted.append(kw["savers"]) or plan(*args, **kw))
    assert rk.fit_into(blocks, gpu="nvidia-rtx-3070", batch=2**40).best is None
    assert {savers.accumulate for savers in predicted} == {1}


def test_a_batch_is_cut_into_the_fewest_parts_that_fit(tight: object) -> None:
    for trial in tight.trials:
        p = trial.prediction
        if p.savers.accumulate > 1 and not p.savers.offload_activations and isinstance(p.savers.checkpoint, bool):
            half = replace(p.savers, accumulate=p.savers.accumulate // 2)
            assert p.fits
            assert not fitting.fits(trial.graph, p.alone.setting, p.strategy, half)


def test_a_batch_is_cut_into_equal_parts(blocks: rk.Graph) -> None:
    with pytest.raises(InputError, match="batch=12 cannot be cut into equal parts for 8 GPUs"):
        rk.fit_into(blocks, cluster="dgx-h100", gpus=8, batch=12)


def test_every_trial_has_the_verdict_of_its_step(tight: object) -> None:
    table = tight.table.set_index("combination")
    for trial in tight.trials:
        found = trial.prediction.memory_verdict()
        assert table.loc[trial.name, "probability"] == found.probability
        assert trial.prediction.fits == (found.probability >= 0.5)


def test_a_choice_in_doubt_stands_beside_the_fastest_sure_one(tight: object) -> None:
    chance = tight.prediction.memory_verdict().probability
    sure = next(row for row in tight.table.itertuples() if row.probability >= 0.95)
    assert chance < 0.95
    said = f" ({chance:.0%} likely to fit; the fastest at 95 % or more is {sure.combination}: "
    assert said in str(tight).splitlines()[0]


def test_every_row_is_a_prediction(tight: object, blocks: rk.Graph) -> None:
    names = [trial.name for trial in tight.trials]
    assert len(set(names)) == len(names)
    assert {"as it is", "checkpoint all blocks", "autocast bfloat16", "8-bit optimizer"} <= set(names)
    parts = next(trial for trial in tight.trials if trial.name == "autocast bfloat16, accumulate 2")
    assert parts.prediction.savers == rk.Savers(accumulate=2)
    assert tight.to_dict()["best"]["combination"] == tight.best.name
    assert tight.best.name in str(tight).splitlines()[0]
    assert "<table" in tight._repr_html_()


def test_as_many_activations_are_saved_as_fit(tight: object) -> None:
    fitting = [trial.prediction for trial in tight.trials if trial.prediction.fits]
    chosen = [p for p in fitting if p.savers.save or p.savers.offload_activations]
    assert chosen
    full = {p.savers.accumulate: p for p in fitting if p.savers.checkpoint is True and not p.savers.save}
    for p in chosen:
        if p.savers.save and p.savers.accumulate in full:
            least = full[p.savers.accumulate]
            assert p.shares[0].memory.peak_bytes >= least.shares[0].memory.peak_bytes


def test_what_fits_as_it_is_needs_nothing(blocks: rk.Graph) -> None:
    found = rk.fit_into(blocks, gpu="nvidia-rtx-3070", batch=64)
    assert found.best.name == "as it is"  # though an optimizer in 8 bits is a little faster
    assert found.fastest.name != "as it is"
    first = str(found).splitlines()[0]
    assert first.startswith("chosen: as it is: ")
    assert f"is within 2 % of the fastest that fits ({found.fastest.name}: " in first
    assert first.endswith("), and it changes less")
    assert all(trial.prediction.savers.accumulate == 1 for trial in found.trials)


def test_a_graph_without_its_model_keeps_its_format(blocks: rk.Graph) -> None:
    found = rk.fit_into(replace(blocks.at(batch=64), origin=Origin()), gpu="nvidia-rtx-3070")
    assert {trial.graph.autocast for trial in found.trials} == {None}


def test_where_to_is_said_once(blocks: rk.Graph) -> None:
    with pytest.raises(InputError, match=r"^fit_into: expected gpu=…, or cluster=… with gpus=…$"):
        rk.fit_into(blocks, batch=8)


def test_the_largest_batch_with_each_remedy_is_the_last_that_fits(blocks: rk.Graph) -> None:
    device = rk.load_device("nvidia-rtx-3070")
    small = device.model_copy(update={"dram": device.dram.model_copy(update={"capacity": 1.25 * 2**30})})
    found = rk.fit_into(blocks, gpu=small, batch=4096, largest="batch")
    alone = rk.predict(blocks.at(batch=4096), gpu=small).largest_batch()
    table = found.table.set_index("combination")
    assert table.loc["as it is", "largest_batch"] == alone
    assert table.loc["checkpoint all blocks", "largest_batch"] > alone
    assert table.loc["autocast bfloat16", "largest_batch"] > alone
    assert f"batch ≤ {alone}" in str(found)


def test_the_largest_batch_in_parts_is_a_multiple_of_them(tight: object, blocks: rk.Graph) -> None:
    trial = next(t for t in tight.trials if t.name == "autocast bfloat16, accumulate 2")
    setting = trial.prediction.alone.setting
    most = fitting._largest(trial, setting, "batch")

    def fits(batch: int) -> bool:
        return fitting.fits(
            resized(trial.graph, batch=batch), setting, trial.prediction.strategy, trial.prediction.savers
        )

    assert most % 2 == 0
    assert fits(most)
    assert not fits(most + 2)


def test_a_size_that_the_step_does_not_have_is_named(blocks: rk.Graph) -> None:
    with pytest.raises(SizeError, match="no size is named 'tokens'"):
        rk.fit_into(blocks, gpu="nvidia-rtx-3070", batch=8, largest=("tokens",))
