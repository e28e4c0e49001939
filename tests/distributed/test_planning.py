"""Steps on several devices: laws, and sizes worked out by hand."""

import itertools
import math

import pytest
from several import slow_cluster

import rooflinekit as rk
from rooflinekit.distributed.planning import split_by_rate, split_evenly
from rooflinekit.distributed.prediction import Share
from rooflinekit.distributed.queues import turns_s
from rooflinekit.distributed.rewriting import buckets_of, bytes_of, gradients_of
from rooflinekit.errors import InputError

PARAMETER_BYTES = 4 * 140672  # 562688: see conftest


@pytest.mark.parametrize("strategy", ["dp", "ddp", "fsdp", "tensor"])
@pytest.mark.parametrize("execution", ["eager", "compiled", "reduce-overhead"])
def test_one_gpu_is_the_prediction_of_one_gpu(blocks: rk.Graph, strategy: str, execution: str) -> None:
    host = "generic-server"
    many = rk.parallel(blocks, cluster="dgx-a100", gpus=1, strategy=strategy, batch=96, execution=execution, host=host)
    one = rk.predict(blocks, "nvidia-a100-sxm4-80gb", batch=96, execution=execution, host=host)
    assert many.total_s == one.total_s
    assert many.interval() == pytest.approx(one.interval(), rel=1e-12)
    assert [judged.of for judged in many.accuracy] == ([one.accuracy.of] if one.accuracy else [])
    assert many.speedup == 1.0
    assert many.communication_s == 0


@pytest.mark.parametrize("strategy", ["dp", "ddp"])
def test_parts_add_up(blocks: rk.Graph, strategy: str) -> None:
    p = rk.parallel(blocks, cluster="rtx-2080-ti-x4", strategy=strategy, batch=4096)
    assert sum(p.terms().values()) == pytest.approx(p.total_s)
    assert p.hidden_s + p.exposed_s == pytest.approx(p.communication_s)
    assert all(seconds >= 0 for seconds in p.terms().values())
    assert p.hidden_s >= -1e-12
    # the queues' own clock agrees with the terms
    assert all(share.run.end_s == pytest.approx(share.total_s) for share in p.shares)


def test_more_bandwidth_is_never_slower(blocks: rk.Graph) -> None:
    times = [
        rk.parallel(blocks, cluster=slow_cluster(rate), strategy=rk.DDP(), gpus=8, batch=2048).total_s
        for rate in (1e8, 1e9, 1e10, 1e11, 1e12)
    ]
    assert all(later <= sooner * (1 + 1e-12) for sooner, later in itertools.pairwise(times))  # but for rounding
    # 8 GPUs in a ring send 2·7/8 of the gradients each: at 0.1 GB/s at least 9.8 ms
    assert times[0] > 2 * 7 / 8 * PARAMETER_BYTES / 1e8


def test_without_communication_a_step_is_what_a_device_computes(blocks: rk.Graph) -> None:
    free = rk.DDP(bucket_bytes=10**9, first_bucket_bytes=10**9)
    p = rk.parallel(blocks, cluster=slow_cluster(1e30), strategy=free, gpus=2, batch=64 * 1024)
    own = p.shares[0].prediction
    # what remains are the starts and hops of one collective, some microseconds, whatever the bandwidth
    assert own.total_s <= p.total_s <= own.total_s + p.communication_s + p.terms()["contention"] + 1e-6
    assert p.communication_s < 50e-6


def test_every_gradient_is_sent_once(blocks: rk.Graph) -> None:
    p = rk.parallel(blocks, cluster="dgx-a100", strategy="ddp", gpus=4, batch=64)
    sent = [m.timing.size_bytes for m in p.messages if m.timing.collective == "all-reduce"]
    assert sum(sent) == PARAMETER_BYTES


def test_buckets_follow_backward_and_their_limits(blocks: rk.Graph) -> None:
    gradients = gradients_of(blocks.at(batch=8))
    assert gradients[0].spec.shape in ((64, 64), (64,))  # the head's come first
    # of the blocks' 256 × 64 matrices two make more than 100 kB, one does not
    buckets = buckets_of(gradients, 100_000, 1)
    assert len(buckets[0]) == 1
    assert all(bytes_of(one.spec for one in bucket) >= 100_000 for bucket in buckets[1:-1])
    assert all(bytes_of(one.spec for one in bucket[:-1]) < 100_000 for bucket in buckets[1:])
    assert bytes_of(one.spec for bucket in buckets for one in bucket) == PARAMETER_BYTES


def test_overlap_hides_communication(blocks: rk.Graph) -> None:
    small = {"bucket_bytes": 100_000, "first_bucket_bytes": 1000}
    slow = slow_cluster(2e9)
    beside = rk.parallel(blocks, cluster=slow, strategy=rk.DDP(**small), gpus=4, batch=262144)
    after = rk.parallel(blocks, cluster=slow, strategy=rk.DDP(**small, overlap=False), gpus=4, batch=262144)
    assert after.hidden_s < 0.1 * after.communication_s  # only copies out of the first buckets
    assert beside.hidden_s > 0.3 * beside.communication_s
    assert beside.total_s < after.total_s


def test_buckets_as_views_save_a_copy_and_its_memory(blocks: rk.Graph) -> None:
    plain, views = (
        rk.parallel(blocks, cluster="dgx-a100", strategy=rk.DDP(gradient_as_bucket_view=view), gpus=2, batch=8)
        for view in (False, True)
    )
    kernels = [len(p.shares[0].prediction.timings) for p in (plain, views)]
    assert kernels[0] - kernels[1] == 20  # 10 layers with a weight and a bias each are not copied back
    # the buckets stand all the time; without views gradients come to stand beside them, in blocks of 512 bytes: of six
    # biases of 64 half is empty
    held = [[moment.bytes_of["gradients"] for moment in p.shares[0].course] for p in (plain, views)]
    assert (held[0][0], held[0][-1]) == (PARAMETER_BYTES, 2 * PARAMETER_BYTES + 6 * 256)
    assert set(held[1]) == {PARAMETER_BYTES} == {views.shares[0].memory.gradient_bytes}
    assert 0 < plain.shares[0].memory.peak_bytes - views.shares[0].memory.peak_bytes <= PARAMETER_BYTES + 6 * 256


def test_data_parallel_holds_weights_once_and_pieces_while_they_are_sent(blocks: rk.Graph) -> None:
    p = rk.parallel(blocks, cluster="titan-x-x2-gtx-1080", strategy="dp", batch=24)
    for share in p.shares:
        held = {moment.op: moment.bytes_of for moment in share.course}
        assert held["weights 0"]["activations"] == PARAMETER_BYTES * (0 in share.numbers)
        then = held["copies of modules"]
        assert (then["weights"], then["gradients"], then["activations"]) == (PARAMETER_BYTES + 6 * 256, 0, 0)


def test_unequal_devices(blocks: rk.Graph) -> None:
    even = rk.parallel(blocks, cluster="titan-x-x2-gtx-1080", batch=3 * 65536)
    fair = rk.parallel(blocks, cluster="titan-x-x2-gtx-1080", batch=3 * 65536, split="proportional")
    assert [share.batch for share in even.shares] == [65536, 65536]
    # a sample that cannot be halved may go to one of the two fast ones: then they are no longer one share
    *fast, slow = fair.shares
    assert {share.prediction.machine.name for share in fast} == {"nvidia-titan-x-pascal"}
    assert slow.prediction.machine.name == "nvidia-gtx-1080"
    assert [number for share in fair.shares for number in share.numbers] == [0, 1, 2]
    assert max(share.batch for share in fast) - min(share.batch for share in fast) == len(fast) - 1
    assert all(share.batch > slow.batch for share in fast)
    assert sum(len(share.numbers) * share.batch for share in fair.shares) == 3 * 65536
    assert fair.total_s < even.total_s
    assert even.shares[0].terms["straggling"] > even.shares[1].terms["straggling"]


def test_a_measured_step_of_one_gpu_is_found_again(blocks: rk.Graph) -> None:
    alone = rk.parallel(blocks, cluster="dgx-a100", gpus=1, batch=4096, measured=(4096, 0.0123))
    assert alone.total_s == pytest.approx(0.0123)
    assert sum(alone.terms().values()) == pytest.approx(0.0123)
    assert alone.one_gpu_s == pytest.approx(0.0123)


def test_links_are_not_stretched_to_what_was_measured(blocks: rk.Graph) -> None:
    plain = rk.parallel(blocks, cluster="two-nodes-25gbe", gpus=2, batch=8192, strategy=rk.DDP(overlap=False))
    own = rk.predict(blocks.at(batch=4096), gpu=plain.cluster.device_names[0], host=plain.one_gpu.host).total_s
    twice = rk.parallel(
        blocks, cluster="two-nodes-25gbe", gpus=2, batch=8192, strategy=rk.DDP(overlap=False), measured=(4096, 2 * own)
    )
    assert twice.communication_s == pytest.approx(plain.communication_s)
    # all is sent after backward, so that what is added is one step of one GPU, and copies into buckets once more
    assert own <= twice.total_s - plain.total_s <= 1.5 * own
    assert sum(twice.terms().values()) == pytest.approx(twice.total_s)
    assert twice.terms()["correction"] > 0
    assert "times as long as predicted, as measured on one GPU" in twice.notes[0]
    with pytest.raises(InputError, match=r"^measured: expected samples and seconds of a step, as \(32, 0.18\); got"):
        rk.parallel(blocks, cluster="dgx-a100", gpus=2, batch=64, measured=(0, 1.0))
    with pytest.raises(InputError, match=r"^measured: a step on one device tells nothing of a mesh"):
        rk.parallel(blocks, cluster="dgx-a100", gpus=2, batch=64, strategy="tensor", measured=(32, 1.0))


def test_threads_take_turns_in_forward(blocks: rk.Graph) -> None:
    """A step that the CPU limits: four replicas issue four forwards one after another."""
    host = rk.load_host("generic-server")
    p = rk.parallel(blocks, cluster="rtx-2080-ti-x4", strategy="dp", batch=4, host=host)
    # Python's part of an op: 1.5 µs of calling a module and 0.05 of 10 µs, and 5 µs until the next thread runs; of four
    assert turns_s(host, 4) == pytest.approx(28e-6)
    assert turns_s(host, 1) == 0
    assert p.total_s > p.one_gpu.total_s  # nothing to compute, much to issue
    assert [len(share.numbers) for share in p.shares] == [1, 3]
    kinds = p.message_terms
    assert kinds["send-recv"] > 0
    assert kinds["broadcast"] > 0


def test_slow_dispatch_runs_beside_other_threads(blocks: rk.Graph) -> None:
    """What C++ does for an op needs no turn: with ops of 300 µs four threads issue as fast as two."""
    base = rk.load_host("generic-server")
    slow = base.replace(dispatch={"default": base.dispatch["default"], "matmul": 300e-6})
    two, four = (
        rk.parallel(blocks, cluster="rtx-2080-ti-x4", strategy="dp", gpus=n, batch=4, host=slow).shares[0]
        for n in (2, 4)
    )

    def products_s(share: Share) -> list[float]:
        return [end - start for what, start, end in share.run.cpu if what.startswith("addmm")]

    assert products_s(two) == pytest.approx([300e-6] * 10)  # a stem, four blocks of two, a head
    assert products_s(four) == pytest.approx(products_s(two))


def test_data_parallel_sends_weights_and_gradients_once(blocks: rk.Graph) -> None:
    p = rk.parallel(blocks, cluster="rtx-2080-ti-x4", strategy="dp", gpus=2, batch=64)
    sent = sum(m.timing.size_bytes for m in p.messages if m.timing.collective == "broadcast")
    assert sent == 2 * PARAMETER_BYTES
    copies = [m.timing for m in p.messages if m.timing.collective == "send-recv"]
    # half of the batch there: 32 · 64 numbers of 4 bytes and 32 targets of 8
    assert [copy.algorithm for copy in copies] == ["copy", "copy"]
    assert copies[0].size_bytes == 32 * 64 * 4 + 32 * 8


def test_splits() -> None:
    assert split_evenly(10, 4) == [3, 3, 2, 2]
    assert split_by_rate(10, [3.0, 1.0, 1.0]) == [6, 2, 2]
    assert split_by_rate(3, [1000.0, 1.0, 1.0]) == [1, 1, 1]
    with pytest.raises(InputError, match=r"^batch=2 cannot be cut for 4 devices: expected 4 or more$"):
        split_evenly(2, 4)


def test_errors_in_one_line(blocks: rk.Graph) -> None:
    with pytest.raises(InputError, match=r"^strategy: expected dp, ddp, .*; got 'dpp'"):
        rk.parallel(blocks, cluster="dgx-a100", strategy="dpp", batch=8)
    with pytest.raises(InputError, match=r"^dgx-a100 has 8 devices; got gpus=9$"):
        rk.parallel(blocks, cluster="dgx-a100", gpus=9, batch=9)
    with pytest.raises(InputError, match=r"^FSDP stage: expected 1, 2 or 3; got 4$"):
        rk.FSDP(stage=4)


def test_the_reason_names_what_is_waited_for(blocks: rk.Graph) -> None:
    slow = rk.parallel(blocks, cluster=slow_cluster(1e7), gpus=4, batch=4096)
    assert "GPU waits for links, most for all-reduce over nvlink-3" in str(slow)
    fast = rk.parallel(blocks, cluster=slow_cluster(1e12), gpus=4, batch=2**22)
    assert "and nothing else takes 1% of it" in str(fast)


@pytest.mark.parametrize(
    "execution",
    [rk.Execution(sync="none"), rk.Execution(backend="cuda-graph"), rk.Execution(copy="pinned", non_blocking=True)],
    ids=["loop", "cuda-graph", "copies"],
)
def test_other_ways_to_run_send_as_much(blocks: rk.Graph, execution: rk.Execution) -> None:
    p = rk.parallel(blocks, cluster="dgx-a100", gpus=4, batch=4096, execution=execution)
    sent = sum(m.timing.size_bytes for m in p.messages if m.timing.collective == "all-reduce")
    assert sent == PARAMETER_BYTES
    assert all(seconds >= 0 for seconds in p.terms().values())


def test_interval_and_documents(blocks: rk.Graph) -> None:
    p = rk.parallel(blocks, cluster="dgx-a100", gpus=4, batch=64)
    low, high = p.interval()
    assert low < p.total_s < high
    # The links may be slower, and then show what they hid, no more than backward holds: two thirds of the kernels.
    spread = max(m.timing.spread for m in p.messages)
    kernels = p.total_s - p.exposed_s - p.terms()["contention"]
    assert p.communication_s * math.exp(1.645 * spread) < kernels * 2 / 3
    assert high / p.total_s >= p.slowest.prediction.interval()[1] / p.slowest.prediction.total_s * 0.9
    found = p.to_dict()
    assert (found["gpus"], found["batch"], found["strategy"]["name"]) == (4, 64, "DDP")
    assert "4 × nvidia-a100-sxm4-80gb: 16 samples" in str(p)
    assert "<table" in p._repr_html_()
