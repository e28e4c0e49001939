"""Memory savers: what they free, and what they take."""

import pytest

import rooflinekit as rk
from rooflinekit.distributed.saving import accumulated, checkpointed, in_eight_bits
from rooflinekit.errors import InputError

PARAMETERS = 140672  # see conftest

# Matrix FLOP a sample: stem 2 products of 64·64 (its input needs no gradient), head 3, each of the blocks' 8 layers 3
# of 64·256; 2 FLOP each: 2·(5·4096 + 24·16384) = 827392.
FLOP = 827392
# Computed again in all four blocks: the first layer alone, 2 FLOP · 64·256, for backward reads nothing that the second
# one gives.
AGAIN = 4 * 2 * 16384


def saved(blocks: rk.Graph, batch: int = 4096, **savers: object) -> rk.ParallelPrediction:
    return rk.parallel(blocks, cluster="dgx-a100", gpus=1, batch=batch, savers=rk.Savers(**savers))


def test_a_checkpoint_computes_forward_once_more(blocks: rk.Graph) -> None:
    graph = blocks.at(batch=8)
    assert graph.matrix_flop == 8 * FLOP
    assert checkpointed(graph, True).matrix_flop == 8 * (FLOP + AGAIN)
    assert checkpointed(graph, ("blocks.1", "blocks.2")).matrix_flop == 8 * (FLOP + AGAIN // 2)


def test_checkpoints_free_activations(blocks: rk.Graph) -> None:
    plain, one, every = (saved(blocks, checkpoint=paths) for paths in (False, ("blocks.1",), True))
    peaks = [p.shares[0].memory.peak_bytes for p in (plain, one, every)]
    assert peaks[0] > peaks[1] > peaks[2]
    # a block keeps 256 numbers a sample after its first layer, which ReLU's result is, twice while both are alive
    assert peaks[0] - peaks[2] >= 2 * 4096 * 256 * 4
    assert plain.total_s < one.total_s < every.total_s


def test_a_checkpoint_that_saves_its_products_computes_none_again(blocks: rk.Graph) -> None:
    graph = blocks.at(batch=8)
    saved_products = checkpointed(graph, True, ("aten.addmm",))
    assert saved_products.matrix_flop == graph.matrix_flop
    again = [p.op for p in saved_products.priced if " again in " in p.op.name and p.costs]
    assert [op.kind for op in again] == 4 * ["aten.relu"]
    by_place = checkpointed(graph, True, ("0:aten.addmm",))
    assert by_place.matrix_flop == graph.matrix_flop


def test_what_a_checkpoint_saves_stays(blocks: rk.Graph) -> None:
    nothing, products, plain = (
        saved(blocks, 65536, checkpoint=True),
        saved(blocks, 65536, checkpoint=True, save=("0:aten.addmm",)),
        saved(blocks, 65536),
    )
    peaks = [p.shares[0].memory.peak_bytes for p in (nothing, products, plain)]
    # 256 numbers of 4 bytes a sample, of three blocks at least: the last one's are there in any case
    assert peaks[1] - peaks[0] >= 3 * 65536 * 256 * 4 - 2**21
    assert plain.total_s < products.total_s < nothing.total_s


def test_activations_on_the_host(blocks: rk.Graph) -> None:
    batch = 262144
    plain, away = saved(blocks, batch), saved(blocks, batch, offload_activations=True)
    one = batch * 256 * 4  # bytes of a block's ReLU
    peaks = [p.shares[0].memory.peak_bytes for p in (plain, away)]
    assert peaks[0] - peaks[1] >= one
    # three blocks' leave over PCIe 4 x16, 31.5 GB/s, which takes longer than computing
    assert away.total_s > 3 * one / 31.5e9
    assert away.terms()["offload"] > 0
    assert sum(away.terms().values()) == pytest.approx(away.total_s)
    assert "activations on the CPU: " in away.notes[0]
    few = saved(blocks, batch, offload_activations=("blocks.0",))
    assert plain.total_s < few.total_s < away.total_s


def test_activations_on_the_host_in_parts_and_stages(blocks: rk.Graph) -> None:
    parts = saved(blocks, 65536, accumulate=2, offload_activations=True)
    assert sum(parts.terms().values()) == pytest.approx(parts.total_s)
    staged = rk.parallel(
        blocks, cluster="dgx-a100", gpus=2, batch=65536, strategy=rk.Mesh(pipeline=2, microbatches=4),
        savers=rk.Savers(offload_activations=True),
    )  # fmt: skip
    assert staged.terms()["offload"] > 0
    assert sum(staged.terms().values()) == pytest.approx(staged.total_s)


def test_accumulation_does_the_same_work_with_less_memory(blocks: rk.Graph) -> None:
    whole, parts = saved(blocks), saved(blocks, accumulate=4)
    own = parts.shares[0].prediction
    assert own.graph.matrix_flop == whole.shares[0].prediction.graph.matrix_flop
    uses = [p.shares[0].memory for p in (parts, whole)]
    tensors = [use.peak_bytes - use.workspace_bytes for use in uses]  # cuBLAS keeps as much in either
    assert tensors[0] < 0.5 * tensors[1]
    assert parts.total_s > whole.total_s
    # the optimizer runs once, and three further gradients are added for each of 20 parameters
    kinds = [p.op.kind for p in own.graph.priced]
    assert kinds.count("aten._foreach_addcdiv_") == 1
    added = [p for p in own.graph.priced if " added of part" in p.op.name]
    assert len(added) == 3 * 20


def test_memory_does_not_grow_with_the_parts(blocks: rk.Graph) -> None:
    few, many = (accumulated(blocks.at(batch=64), parts) for parts in (2, 5))
    device = "nvidia-a100-sxm4-80gb"
    # beside the inputs: 64 samples of 64 numbers in fp32 and a target of 8 bytes
    further = 3 * (64 * 64 * 4 + 64 * 8)
    peaks = [rk.predict(graph, device).memory.peak_bytes for graph in (few, many)]
    assert peaks[1] - peaks[0] == pytest.approx(further, abs=6 * 512)


def test_state_in_eight_bits(blocks: rk.Graph) -> None:
    plain, small = saved(blocks), saved(blocks, eight_bit=True)
    before, after = (p.shares[0].memory.state_bytes for p in (plain, small))
    assert before >= 2 * 4 * PARAMETERS  # Adam's two moments
    assert after == pytest.approx(2 * PARAMETERS * (1 + 4 / 256), rel=0.02)
    graph = blocks.at(batch=8)
    assert in_eight_bits(graph).bytes < graph.bytes


def test_an_optimizer_on_the_cpu(blocks: rk.Graph) -> None:
    plain, away = saved(blocks), saved(blocks, offload=True)
    assert away.shares[0].memory.state_bytes == 0
    assert away.terms()["offload"] > 0
    assert sum(away.terms().values()) == pytest.approx(away.total_s)
    # at least weights and gradients over PCIe 4 x16, 31.5 GB/s
    assert away.terms()["offload"] > 2 * 4 * PARAMETERS / 31.5e9
    assert plain.terms()["offload"] == 0


def test_no_sync_while_accumulating(blocks: rk.Graph) -> None:
    p = rk.parallel(blocks, cluster="dgx-a100", gpus=2, batch=64, savers=rk.Savers(accumulate=4))
    sent = sum(m.timing.size_bytes for m in p.messages if m.timing.collective == "all-reduce")
    assert sent == 4 * PARAMETERS  # once, not four times


def test_errors(blocks: rk.Graph) -> None:
    with pytest.raises(InputError, match=r"^accumulate=3: 64 samples of a device cannot be cut into so many parts$"):
        saved(blocks, batch=64, accumulate=3)
    with pytest.raises(InputError, match=r"no op of forward is in module 'blocks.9'"):
        saved(blocks, checkpoint=("blocks.9",))
    with pytest.raises(InputError, match=r"offload_activations: 'blocks.9' is no block: expected some of blocks.0, "):
        saved(blocks, offload_activations=("blocks.9",))
    with pytest.raises(InputError, match=r"^save: aten.mm: expected ops of these blocks: 0:aten.addmm, 1:aten.relu$"):
        saved(blocks, checkpoint=True, save=("aten.mm",))
    with pytest.raises(InputError, match=r"^save: .* expected checkpoint too; got none$"):
        rk.Savers(save=("aten.mm",))
    with pytest.raises(InputError, match=r"^execution 'compiled': activations go to the host between"):
        rk.parallel(
            blocks, cluster="dgx-a100", gpus=1, batch=64, execution="compiled",
            savers=rk.Savers(offload_activations=True),
        )  # fmt: skip
    with pytest.raises(InputError, match=r"^accumulate: expected an integer of 1 or more; got 0$"):
        rk.Savers(accumulate=0)
