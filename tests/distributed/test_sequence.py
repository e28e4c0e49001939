"""What lies between the pairs of a tensor group, cut by tokens: counts by hand, and laws."""

import pytest
from several import LAYERS, SEQUENCE, WIDTH, slow_cluster, transformer_step, unmade
from torch import nn

import rooflinekit as rk
from rooflinekit.distributed.staged import saved_bytes
from rooflinekit.distributed.tensor import cut, cut_by_tokens
from rooflinekit.errors import InputError
from rooflinekit.ir.graph import resized


@pytest.fixture(scope="module")
def transformer() -> rk.Graph:
    return transformer_step()


def predicted(
    graph: rk.Graph, *, batch: int, sequence: bool, tensor: int = 2, **options: object
) -> rk.ParallelPrediction:
    mesh = rk.Mesh(tensor=tensor, sequence=sequence)
    return rk.parallel(graph, cluster="dgx-a100", strategy=mesh, gpus=tensor, batch=batch, **options)


def sizes(p: rk.ParallelPrediction, collective: str, *, again: bool = False) -> list[float]:
    return [
        m.timing.size_bytes
        for m in p.messages
        if m.timing.collective == collective and m.key.endswith("again") is again
    ]


def test_a_reduction_falls_apart(blocks: rk.Graph) -> None:
    whole, parted = (predicted(blocks, batch=512, sequence=sequence) for sequence in (False, True))
    tensor = 512 * 64 * 4  # batch × width in fp32
    assert sizes(parted, "reduce-scatter") == [tensor] * 8  # four pairs, forward and backward
    # Forward before the pairs 2 to 4 and before the head, backward before the pairs 3 to 1 and before the stem.
    assert sizes(parted, "all-gather") == [tensor] * 8
    # What the columns of the pairs 2 to 4 and the head have read, once more for their weights' gradients.
    assert sizes(parted, "all-gather", again=True) == [tensor] * 4
    sent = [m.timing.wire_bytes for m in parted.messages if not m.key.endswith(("again", "of tokens"))]
    assert sum(sent) == sum(m.timing.wire_bytes for m in whole.messages)
    # Biases of the rows of pairs 1 to 3, and of the stem: their gradients' sums run over a device's tokens.
    assert sizes(parted, "all-reduce") == [4 * 64 * 4]


def test_counts_of_a_transformer(transformer: rk.Graph) -> None:
    p = predicted(transformer, batch=8, sequence=True)
    tensor = 8 * SEQUENCE * WIDTH * 4
    # Two pairs a layer. The first norm stands before the first pair and the last one before the head, so that there is
    # one gather more each way than there are pairs: for the head, and for the embedding's gradient.
    assert sizes(p, "reduce-scatter") == [tensor] * (2 * 2 * LAYERS)
    assert sizes(p, "all-gather") == [tensor] * (2 * (2 * LAYERS + 1))
    assert sizes(p, "all-gather", again=True) == [tensor] * (2 * LAYERS + 1)
    # Weight and bias of 2·2 + 1 norms, and the biases of four rows.
    assert sizes(p, "all-reduce") == [(2 * (2 * LAYERS + 1) + 2 * LAYERS) * WIDTH * 4]


@pytest.mark.parametrize("parts", [2, 4])
def test_what_is_kept_between_the_pairs(transformer: rk.Graph, parts: int) -> None:
    graph = transformer.at(batch=8)
    rows = 8 * SEQUENCE
    tensor = rows * WIDTH * 4
    # Kept for backward: the embedding's result, of a layer two sums, two norms' results and two masks of a byte an
    # element, the last norm's result; and mean and deviation of each row in each norm.
    between = tensor * (1 + LAYERS * (2 + 2 + 2 / 4) + 1) + (2 * LAYERS + 1) * 2 * rows * 4
    saved = saved_bytes(cut(graph, parts)) - saved_bytes(cut_by_tokens(graph, parts))
    assert saved == between * (parts - 1) / parts
    peaks = [predicted(transformer, batch=8192, sequence=s).shares[0].memory.peak_bytes for s in (False, True)]
    assert peaks[1] < peaks[0]


def test_norms_take_a_part_of_their_time(transformer: rk.Graph) -> None:
    def normalizing(sequence: bool) -> float:
        p = predicted(transformer, batch=65536, sequence=sequence, tensor=4)
        timings = p.shares[0].prediction.timings
        return sum(t.total_s for t in timings if "layer_norm" in t.kernel.kind)

    assert normalizing(True) == pytest.approx(normalizing(False) / 4, rel=0.1)


@pytest.mark.parametrize("savers", [rk.Savers(), rk.Savers(accumulate=2, checkpoint=True)], ids=["plain", "savers"])
def test_terms_add_up(transformer: rk.Graph, savers: rk.Savers) -> None:
    mesh = rk.Mesh(tensor=2, sequence=True)
    p = rk.parallel(transformer, cluster="dgx-a100", strategy=mesh, gpus=4, batch=4096, savers=savers)
    assert sum(p.terms().values()) == pytest.approx(p.slowest.run.end_s)
    assert all(seconds >= -1e-12 for seconds in p.terms().values())
    assert p.hidden_s + p.exposed_s == pytest.approx(p.communication_s)


def test_checkpoints_send_again_what_they_compute_again(transformer: rk.Graph) -> None:
    plain, again = (
        predicted(transformer, batch=64, sequence=True, savers=rk.Savers(checkpoint=paths))
        for paths in (False, ("layers.0",))
    )
    # One layer more forward: a gather before each of its two pairs, and a scatter after it.
    for collective in ("all-gather", "reduce-scatter"):
        assert len(sizes(again, collective)) == len(sizes(plain, collective)) + 2


def test_links_for_nothing_leave_what_a_device_computes(transformer: rk.Graph) -> None:
    mesh = rk.Mesh(tensor=2, sequence=True)
    p = rk.parallel(transformer, cluster=slow_cluster(1e30), strategy=mesh, gpus=2, batch=65536)
    own = p.shares[0].prediction
    assert own.total_s <= p.total_s <= own.total_s + p.communication_s + p.terms()["contention"] + 1e-6
    # A start, the hops and copies on the device remain of each message.
    assert all(m.timing.transfer_s < 1e-9 for m in p.messages)


def test_every_tensor_that_is_read_is_made(transformer: rk.Graph) -> None:
    assert unmade(cut_by_tokens(transformer.at(batch=8), 2)) == []


def test_what_cannot_be_cut_by_tokens(transformer: rk.Graph) -> None:
    with pytest.raises(
        InputError, match=r"^layers.0.before: a sequence of 6 tokens cannot be cut for 4 devices; choose"
    ):
        cut_by_tokens(resized(transformer, batch=8, seq=6), 4)
    with pytest.raises(
        InputError, match=r"^Mesh sequence: tokens are cut within a tensor group; expected tensor of 2 or"
    ):
        rk.Mesh(sequence=True)
    mesh = rk.Mesh(tensor=2, pipeline=2, sequence=True)
    with pytest.raises(InputError, match=r"^Mesh pipeline: goes with tensor and context, but not with seq"):
        rk.parallel(transformer, cluster="dgx-a100", strategy=mesh, gpus=4, batch=64)
    pair = nn.Sequential(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)))
    alone = rk.trace(pair, rk.Input("batch", 64), mode="training")
    with pytest.raises(
        InputError, match=r"^Sequential: nothing between its pairs of linear layers computes each token on"
    ):
        cut_by_tokens(alone.at(batch=8), 2)
