"""Steps in a pipeline's stages, with copies that agree on gradients: what is sent and when, what repeats; laws."""

import pytest
from several import slow_cluster

import rooflinekit as rk
from rooflinekit.hardware.specs import load_cluster

PARAMETER_BYTES = 4 * 140672  # see conftest
SMALL = rk.DDP(bucket_bytes=100_000, first_bucket_bytes=1000)
DATA = [rk.DDP(), SMALL, rk.FSDP(stage=1), rk.FSDP(stage=2), rk.FSDP()]
NAMES = ["ddp", "buckets", "zero-1", "zero-2", "fsdp"]


def staged(
    graph: rk.Graph, *, gpus: int = 4, batch: int = 65536, cluster: object = "dgx-a100", execution: object = "eager",
    **mesh: object,
) -> rk.ParallelPrediction:  # fmt: skip
    options = {"pipeline": 2, "microbatches": 4, **mesh}
    return rk.parallel(graph, cluster=cluster, strategy=rk.Mesh(**options), gpus=gpus, batch=batch, execution=execution)


def sent(p: rk.ParallelPrediction) -> dict[str, float]:
    """Bytes by collective, between copies."""
    found: dict[str, float] = {}
    for m in p.messages:
        if m.group.startswith("data"):
            found[m.timing.collective] = found.get(m.timing.collective, 0) + m.timing.size_bytes
    return found


@pytest.mark.parametrize(
    ("data", "execution"),
    [
        *((way, "eager") for way in DATA),
        *((way, execution) for way in (SMALL, rk.FSDP()) for execution in ("compiled", "reduce-overhead")),
        (SMALL, "cuda-graph"),
    ],
)
def test_terms_add_up(blocks: rk.Graph, data: object, execution: str) -> None:
    p = staged(blocks, data=data, execution=execution)
    for share in p.shares:
        assert share.total_s == pytest.approx(share.run.end_s)
        assert all(seconds >= 0 for seconds in share.terms.values())
    assert p.hidden_s >= 0
    assert p.hidden_s + p.exposed_s == pytest.approx(p.communication_s)


def test_the_fullest_devices_are_of_the_first_stage(blocks: rk.Graph) -> None:
    """1F1B of stages that are alike but for their ends: the first keeps two microbatches, the last one."""
    p = staged(blocks)
    shares = [share.memory.peak_bytes for share in p.shares]
    assert p.fullest.memory.peak_bytes == max(shares)
    assert p.fullest.numbers == p.shares[0].numbers
    assert p.to_dict()["fullest"] == list(p.fullest.numbers)
    assert "fits: GPUs 0 to 1 need most memory, " in str(p)  # of four, in two stages


@pytest.mark.parametrize("pieces", [1, 2, 8])
def test_copies_send_once_a_step(blocks: rk.Graph, pieces: int) -> None:
    """Each gradient is reduced once, and weights that are shared out are gathered once, whatever the microbatches."""
    results = {name: sent(staged(blocks, data=way, microbatches=pieces)) for name, way in zip(NAMES, DATA, strict=True)}
    assert results["ddp"] == results["buckets"] == {"all-reduce": PARAMETER_BYTES}
    scattered = {"reduce-scatter": PARAMETER_BYTES, "all-gather": PARAMETER_BYTES}
    assert results["zero-1"] == results["zero-2"] == results["fsdp"] == scattered
    assert sent(staged(blocks, gpus=2, microbatches=pieces)) == {}


def test_gradients_are_sent_beside_the_last_backward(blocks: rk.Graph) -> None:
    beside = staged(blocks, data=SMALL, cluster=slow_cluster(1e10))
    after = staged(blocks, data=rk.DDP(overlap=False), cluster=slow_cluster(1e10))
    for p, overlaps in ((beside, True), (after, False)):
        last = max(end for what, _, end in p.shares[0].run.slots if what.startswith("backward 3"))
        starts = [m.start_s for m in p.messages if m.group == "data, stage 0"]
        assert (min(starts) < last) is overlaps
    assert beside.total_s < after.total_s


def test_shared_out_weights_come_with_the_first_piece(blocks: rk.Graph) -> None:
    p = staged(blocks, data=rk.FSDP())
    gathers = [m.key for m in p.messages if m.timing.collective == "all-gather"]
    assert all(key.endswith(", 0") for key in gathers)
    reduces = [m for m in p.messages if m.timing.collective == "reduce-scatter"]
    assert all(m.key.endswith(", 3") for m in reduces)  # of pieces 0 to 3
    ends = {f"data, stage {k}": max(end for _, _, end in p.shares[k].run.slots) for k in range(2)}
    assert all(m.start_s >= ends[m.group] for m in reduces)


def test_what_each_stage_keeps(blocks: rk.Graph) -> None:
    plain, *shared = (staged(blocks, data=way) for way in (rk.DDP(), rk.FSDP(stage=1), rk.FSDP(stage=2), rk.FSDP()))
    for k, whole in enumerate(share.memory for share in plain.shares):
        uses = [p.shares[k].memory for p in shared]
        assert all(use.state_bytes == pytest.approx(whole.state_bytes / 2, rel=0.02) for use in uses)
        assert [use.gradient_bytes < 0.6 * whole.gradient_bytes for use in uses] == [False, True, True]
        assert [use.weight_bytes < 0.6 * whole.weight_bytes for use in uses] == [False, False, True]


def test_a_microbatch_does_not_cost_the_host_a_step(blocks: rk.Graph) -> None:
    """What the first device waits for its CPU is the start and the end of the step, however many pieces there are."""
    host = rk.load_host("generic-server")
    waits = [staged(blocks, gpus=2, batch=8192 * m, microbatches=m).terms()["overhead"] for m in (2, 4, 16)]
    assert waits == pytest.approx([waits[0]] * 3)
    # a view and a product are dispatched before the first kernel
    assert waits[0] < host.step + 2 * host.dispatch_s("matmul") + host.launch_latency + host.sync


def test_inputs_are_copied_once(blocks: rk.Graph) -> None:
    p = staged(blocks, gpus=2, execution=rk.Execution(copy="pinned"))
    rate = rk.load_host(load_cluster("dgx-a100").host).copy_bandwidth_pinned
    # the first stage has the samples, 64 numbers in fp32, the last one the targets, of 8 bytes
    assert p.shares[0].terms["input"] == pytest.approx(65536 * 64 * 4 / min(rate, 31.5e9 * 256 / 280), rel=0.01)
    assert p.shares[1].terms["input"] == pytest.approx(p.shares[0].terms["input"] / 32)


@pytest.mark.parametrize("data", [SMALL, rk.FSDP()], ids=["buckets", "fsdp"])
def test_more_bandwidth_is_never_slower(blocks: rk.Graph, data: object) -> None:
    found = [staged(blocks, data=data, cluster=slow_cluster(rate)) for rate in (1e8, 1e9, 1e10, 1e11, 1e12)]
    times = [p.total_s for p in found]
    assert times == sorted(times, reverse=True)
    # whatever the links, devices compute the same
    kernels = [sum(p.terms()[name] for name in ("ideal", "underuse", "memory", "launch")) for p in found]
    assert kernels == pytest.approx([kernels[0]] * 5)


def test_equal_stages_have_the_ideal_bubble(blocks: rk.Graph) -> None:
    """Four blocks in four stages, with stem and head small: (p − 1) / (m + p − 1) = 3 / 11 of the step."""
    p = staged(blocks, gpus=4, pipeline=4, microbatches=8, batch=8 * 262144, cluster=slow_cluster(1e13))
    assert p.terms()["bubble"] / p.total_s == pytest.approx(3 / 11, abs=0.05)


def test_unequal_stages_are_cut_by_their_devices(blocks: rk.Graph) -> None:
    """Two Titan X, and a GTX 1080 of 0.8 of their rate: no one's turn comes to more than its share."""
    p = rk.parallel(blocks, cluster="titan-x-x2-gtx-1080", strategy=rk.Mesh(pipeline=3, microbatches=6), batch=6 * 8192)
    assert [share.prediction.machine.name for share in p.shares] == ["nvidia-titan-x-pascal"] * 2 + ["nvidia-gtx-1080"]
    assert sum(share.memory.weight_bytes for share in p.shares) == PARAMETER_BYTES
    assert p.shares[2].memory.weight_bytes <= p.shares[1].memory.weight_bytes


def test_the_slowest_of_a_group_sets_the_pace(blocks: rk.Graph) -> None:
    def tensor(gpus: tuple[int, ...]) -> rk.ParallelPrediction:
        mesh = rk.Mesh(tensor=2)
        return rk.parallel(blocks, cluster="titan-x-x2-gtx-1080", strategy=mesh, gpus=gpus, batch=65536)

    equal, mixed = tensor((0, 1)), tensor((1, 2))
    fast, slow = mixed.shares
    assert (fast.numbers, slow.numbers) == ((1,), (2,))
    assert fast.terms["straggling"] > slow.terms["straggling"] == 0
    assert mixed.total_s > equal.total_s
    assert fast.total_s == pytest.approx(slow.total_s, rel=0.05)
