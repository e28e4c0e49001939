"""Laws of a decoder's training on many GPUs."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from overlaps import overlaps

import rooflinekit as rk
from rooflinekit.distributed.pieces import graph_of
from rooflinekit.distributed.pipeline import Layer, Stage, least_s, pipelined, sent_beside
from rooflinekit.distributed.products import Part
from rooflinekit.distributed.queues import Pace, Work
from rooflinekit.distributed.records import recipe_of
from rooflinekit.errors import InputError
from rooflinekit.hardware.specs import members_of
from rooflinekit.ir.op import Phase
from rooflinekit.step.memory import USABLE_SHARE
from rooflinekit.timing.collectives import CollectiveTiming, route_of
from rooflinekit.units import format_quantity

LLAMA = rk.Decoder(
    name="llama", layers=8, hidden=2048, heads=16, kv_heads=8, head_dim=128, ffn=8192, vocab=32000
)  # fmt: skip
CLUSTER = rk.load_cluster("a100-x8-hdr")
A100 = rk.load_device("nvidia-a100-sxm4-80gb")


def layer(forward: float = 4.0, backward: float = 8.0, *, gather: float = 0.0, reduce: float = 0.0) -> Layer:
    """Seconds forward and backward, and of what is sent for it."""

    def sent(what: str, seconds: float) -> tuple[CollectiveTiming, ...]:
        route = route_of(CLUSTER, members_of(CLUSTER), 2)
        time = CollectiveTiming(collective=what, algorithm="ring", size_bytes=1.0, transfer_s=seconds, route=route)
        return (time,) if seconds else ()

    items = [[Work(what="layer", block_s=seconds)] for seconds in (forward, backward)]
    return Layer(items=items, gather=sent("all-gather", gather), reduce=sent("reduce-scatter", reduce))


def pace(progress: float) -> Pace:
    """A CPU that is never late."""
    return Pace(device=A100, latency_s=0.0, sync_s=0.0, steady=True, progress=progress)


def step(
    decoder: rk.Decoder = LLAMA, *, cluster: object = CLUSTER, gpus: int = 8, batch: int = 64, seq: int = 2048,
    recipe: object = "megatron", **layout: object,
) -> rk.TrainingStep:  # fmt: skip
    own = rk.Layout(**layout)  # type: ignore[arg-type]
    return rk.train(decoder, cluster=cluster, gpus=gpus, batch=batch, seq=seq, layout=own, recipe=recipe)


@pytest.mark.parametrize(
    "layout",
    [
        {}, {"tensor": 2}, {"tensor": 2, "sequence": True}, {"pipeline": 2}, {"pipeline": 2, "chunks": 2},
        {"context": 2}, {"sharding": "fsdp"}, {"sharding": "grad-op"}, {"sharding": "hybrid", "gpus": 16},
        {"sharding": "ddp", "overlap": False}, {"tensor": 2, "pipeline": 2, "gpus": 16, "micro_batch": 2},
    ],
)  # fmt: skip
def test_terms_add_up_and_utilization_is_its_formula(layout: dict[str, object]) -> None:
    found = step(**dict(layout))
    assert found.total_s == pytest.approx(sum(found.terms.values()))
    assert min(found.terms.values()) > -1e-9 * found.total_s
    low, high = found.interval()
    assert low < found.total_s < high
    # 6·N·tokens, N without the embedding's table; attention 12·layers·width·seq/2 a token
    numbers = 8 * (2048 * 128 * (2 * 16 + 2 * 8) + 3 * 2048 * 8192) + 32000 * 2048
    flop = 64 * 2048 * (6 * numbers + 12 * 8 * 2048 * 2048 / 2)
    assert found.mfu == pytest.approx(flop / (found.total_s * found.gpus * found.peak_flops))
    assert found.peak_flops == pytest.approx(312e12, rel=1e-3)


def test_a_tensor_group_has_a_part_of_the_weights() -> None:
    one, two = step(sharding="ddp"), step(tensor=2, sharding="ddp")
    # gains of norms are whole on each
    assert two.memory.weights == pytest.approx(one.memory.weights / 2, rel=0.001)


def test_the_fullest_stage_is_named() -> None:
    found = step(pipeline=4, gpus=16)
    # 1F1B: the first of four stages keeps four micro-batches, the last one; a stage is 16 / 4 GPUs.
    assert [one.activations for one in found.stages] == sorted((one.activations for one in found.stages), reverse=True)
    assert found.fullest == 0
    assert found.fullest_gpus == range(4)
    assert found.memory is found.stages[0]
    assert "fits: GPUs 0 to 3 (stage 1 of 4) need most memory, " in str(found)
    assert "; over 99% likely to fit; " in str(found)
    assert found.to_dict()["fullest"] == {"stage": 0, "first_gpu": 0, "last_gpu": 3}
    first, *_, last = found.stages
    sizes = [format_quantity(one.allocated, "byte", binary=True) for one in (first, last)]
    assert f"{sizes[0]} allocated when backward begins, stage 4: {sizes[1]}" in str(found)


def test_each_stage_has_its_moments() -> None:
    found = step(pipeline=4, gpus=16)
    stages = found.to_dict()["stages"]
    assert [(one["first_gpu"], one["last_gpu"]) for one in stages] == [(0, 3), (4, 7), (8, 11), (12, 15)]
    for stage, own in zip(stages, found.stages, strict=True):
        assert list(stage["moments"]) == ["backward begins", "backward ends", "update"]
        assert max(one["allocated"] for one in stage["moments"].values()) == own.allocated
        assert stage["moments"]["update"]["activations"] == 0


def test_the_probability_is_a_half_at_the_end_of_memory() -> None:
    memory = step().memory
    least = memory.verdict().least_bytes + memory.context
    ends = {share: replace(memory, capacity=share * least / USABLE_SHARE).probability for share in (0.5, 1.0, 2.0)}
    assert ends[1.0] == pytest.approx(0.5)
    assert ends[0.5] < 1e-6 < 1 - 1e-6 < ends[2.0]


def test_torchtitan_keeps_attention_and_every_other_product() -> None:
    tokens, hidden, keys, ffn, heads = 2048, 2048, 1024, 8192, 16
    recipe = recipe_of("torchtitan").with_changes(recompute="selective")
    few, many = (
        step(LLAMA.with_changes(layers=layers), batch=8, recipe=recipe, sharding="fsdp").memory.activations
        for layers in (8, 9)
    )
    # the block's input, q, v, attention, gate, and the last product, whose result nobody reads; and attention's
    # logarithms of sums, 4 bytes a head
    assert many - few == tokens * (2 * (hidden + hidden + keys + hidden + ffn + hidden) + 4 * heads)


def test_hardware_utilization_counts_what_is_computed_again() -> None:
    found = step(recipe=recipe_of("megatron").with_changes(recompute="full"), tensor=2)
    # forward of 8 layers: q and output, keys and values, three matrices; and 2 products of causal attention
    products = 8 * 2 * (2 * 2048**2 + 2 * 2048 * 1024 + 3 * 2048 * 8192)
    attention = 8 * 2 * 2 * 2048 * (2048 + 1) // 2
    assert found.hfu / found.mfu == pytest.approx(1 + 64 * 2048 * (products + attention) / found.model_flop)


def test_inputs_of_products_in_8_bits_are_kept_in_8_bits() -> None:
    tokens, hidden, ffn = 2048, 2048, 8192
    recipes = (recipe_of("megatron").with_changes(fp8=fp8) for fp8 in (False, True))
    kept = [step(cluster="h100-x8-cluster", recipe=recipe).memory.activations for recipe in recipes]
    # a layer's two norms and its activation are a byte less a number; attention's result is kept in 16 bits for its own
    # gradient, and in 8 for the output's product
    layer = tokens * (2 * hidden + ffn - hidden)
    assert kept[0] - kept[1] == 8 * layer + tokens * hidden  # and the norm before the loss


def test_a_step_that_the_allocator_has_room_for_fits_though_it_would_reserve_more() -> None:
    memory = step().memory
    full = replace(memory, capacity=(memory.allocated * 1.03 + memory.context) / USABLE_SHARE)
    assert full.reserved + full.context > full.capacity * USABLE_SHARE
    assert full.fits
    assert not replace(full, capacity=memory.allocated).fits


def test_shards_of_the_optimizer() -> None:
    whole, shared = step(sharding="ddp").memory, step(sharding="zero-1").memory
    assert shared.optimizer == pytest.approx(whole.optimizer / 8)
    assert shared.weights == whole.weights
    assert step(sharding="fsdp").memory.allocated < shared.allocated
    twice = step(sharding="zero-1", instances=2).memory  # each four of the eight GPUs have all of it
    assert twice.optimizer == pytest.approx(whole.optimizer / 4)


def test_shards_of_a_node_are_stepped_by_its_gpus_alone() -> None:
    # 8 GPUs share the weights of each node: two nodes' optimizers have as much to do as one's, and as much memory
    hybrid, node = step(sharding="hybrid", gpus=16), step(sharding="fsdp", gpus=8)
    assert hybrid.terms["optimizer"] == pytest.approx(node.terms["optimizer"])
    assert hybrid.memory.optimizer == pytest.approx(node.memory.optimizer)


@pytest.mark.parametrize(
    ("layout", "recompute", "forward", "backward"),
    [
        ({}, "none", {"all-reduce": 2}, {"all-reduce": 2}),
        # tokens are gathered before attention and the network, and scattered behind them; backward the other way, and
        # what was gathered comes once more for the gradients of weights
        (
            {"sequence": True}, "none", {"all-gather": 2, "reduce-scatter": 2},
            {"all-gather": 2 + 2, "reduce-scatter": 2},
        ),
        ({}, "full", {"all-reduce": 2}, {"all-reduce": 2 + 2}),
    ],
)  # fmt: skip
def test_a_layer_sends_what_megatron_sends(
    layout: dict[str, bool], recompute: str, forward: dict[str, int], backward: dict[str, int]
) -> None:
    part = Part(decoder=LLAMA.with_changes(layers=2), layout=rk.Layout(tensor=2, **layout), seq=2048)  # type: ignore[arg-type]
    graph = graph_of(part, recipe_of("megatron").with_changes(recompute=recompute), optimizer=False)
    sent = [op for op in graph.ops if "collective" in op.attrs and op.module.startswith("layers.1")]
    for phase, wanted in ((Phase.FORWARD, forward), (Phase.BACKWARD, backward)):
        assert Counter(op.attrs["collective"] for op in sent if op.phase is phase) == wanted
    assert {op.attrs["bytes"] for op in sent} == {2 * 2048 * 2048}  # 16 bits, tokens, width


def test_reductions_that_nothing_runs_beside_are_waited_for() -> None:
    found = step(recipe="pytorch", tensor=2)
    each = rk.collective_time("all-reduce", 2 * 2048 * 2048, CLUSTER, (0, 1)).total_s
    assert found.terms["tensor"] == pytest.approx(8 * 16 * 4 * each)  # layers, micro-batches, two each way
    # Megatron's reduces beside the gradients of weights in backward
    assert 8 * 16 * 2 * each < step(tensor=2).terms["tensor"] < found.terms["tensor"]


def mixture(**layout: object) -> rk.TrainingStep:
    return step(LLAMA.with_changes(experts=8, experts_per_token=2), tensor=2, sequence=True, **layout)  # type: ignore[arg-type]


def test_experts_are_shared_by_the_gpus_that_have_the_same_ones() -> None:
    # 8 GPUs: 4 copies of tensor groups of 2, and 8 / 4 GPUs that have the same 8 / 4 whole experts.
    found = mixture(expert=4)
    experts = 8 * 2 * 3 * 2048 * 8192
    dense = found.memory.weights / 2 - experts  # weights have 2 bytes, the state of Adam 12
    assert found.memory.optimizer == pytest.approx(12 * (dense / 4 + experts / 2))
    # halves of 4 experts in 4 groups of two: each GPU has as many numbers, and so have 8 / (2 · 2) others
    halves = mixture(expert=2, expert_tensor=2)
    assert halves.memory.optimizer == pytest.approx(12 * (dense / 4 + 2 * experts / 2 / 2))


def test_gpus_that_share_an_expert_send_each_other_its_tokens() -> None:
    # Of one expert group of 8 the tokens go nowhere else, but to the other half of each expert.
    assert mixture(expert=1, expert_tensor=2).terms["expert"] > 0
    assert mixture(expert=1).terms.get("expert", 0.0) == 0


def test_the_fullest_gpus_experts_set_the_pace() -> None:
    even, uneven, more = (mixture(expert=4, imbalance=load) for load in (1.0, 1.25, 1.5))
    assert even.total_s < uneven.total_s < more.total_s
    assert uneven.memory.activations > even.memory.activations
    assert uneven.memory.weights == even.memory.weights
    # no more than if all that is not a weight grew as much
    assert uneven.total_s < 1.25 * even.total_s
    assert str(uneven.layout) == "TP 2, EP 4, SP, imbalance 1.25, zero-1, micro-batch 1"


def test_more_bandwidth_is_never_slower() -> None:
    assert CLUSTER.network is not None
    network = CLUSTER.network.model_copy(update={"ports": 8})
    fast = CLUSTER.model_copy(update={"network": network})
    for layout in ({}, {"sharding": "fsdp"}, {"pipeline": 4}):
        times = [step(cluster=cluster, gpus=32, **layout).total_s for cluster in (CLUSTER, fast)]
        assert times[1] <= times[0]


@given(st.integers(1, 6), st.integers(1, 12), st.floats(0.1, 5), st.floats(0.1, 5))
@settings(deadline=None, max_examples=30)
def test_equal_stages_without_links_have_the_bubble_of_theory(p: int, m: int, f: float, b: float) -> None:
    run = pipelined([Stage(forward_s=f, backward_s=b)] * p, m, 1, 0.0)
    assert run.total_s == pytest.approx((m + p - 1) * (f + b))
    assert least_s([Stage(forward_s=f, backward_s=b)] * p, m, 1) <= run.total_s * (1 + 1e-9)


def test_virtual_stages_divide_the_bubble() -> None:
    whole = pipelined([Stage(forward_s=2, backward_s=4)] * 4, 8, 1, 0.0)
    cut = pipelined([Stage(forward_s=1, backward_s=2)] * 8, 8, 2, 0.0)
    assert whole.total_s - whole.busy_s == pytest.approx(3 * 6)  # (p - 1)·(f + b)
    assert cut.total_s - cut.busy_s == pytest.approx(3 * 3)  # a v-th of it


def test_gathers_that_hide_cost_the_first_one_and_the_last_reduction() -> None:
    layers = [layer(gather=1.0, reduce=2.0)] * 3
    run = sent_beside(layers, pace(1.0), again=True)
    assert run.total_s == pytest.approx(3 * 12 + 1 + 2)
    assert (run.waits["copies"], run.waits["contention"]) == (pytest.approx(3), pytest.approx(0))
    # kernels that stand still: all collectives after one another, 3 + 2 gathers of 1 s and 3 reductions of 2 s
    still = sent_beside(layers, pace(0.0), again=True)
    assert still.total_s == pytest.approx(3 * 12 + 5 * 1 + 3 * 2)
    assert still.waits["copies"] + still.waits["contention"] == pytest.approx(5 + 6)
    # at half the pace 1 s beside a collective does half a second of work
    half = sent_beside(layers, pace(0.5), again=True)
    assert half.waits["contention"] == pytest.approx(
        (2 + 2 + 2 * 2) / 2
    )  # 2 gathers each way, and 2 reductions, are hidden


def test_micro_batches_that_are_alike_take_as_long_as_each_by_itself() -> None:
    layers = [layer(gather=1.5, reduce=9.0)] * 2  # reductions that are not done when the next micro-batch begins
    times = [sent_beside(layers, pace(0.5), pieces=n, again=True).total_s for n in (3, 4, 5, 9)]
    assert times[2] - times[1] == pytest.approx(times[1] - times[0])
    assert times[3] - times[2] == pytest.approx(4 * (times[1] - times[0]))


def test_buckets_that_are_reduced_behind_backward_leave_the_last_one() -> None:
    # four buckets of 2 s of backward and 1 s to send: what is left at the end is the last bucket's second
    run = sent_beside([layer(1.0, 2.0, reduce=1.0)] * 4, pace(1.0), ahead=4)
    assert run.total_s == pytest.approx(4 * 3 + 1)
    # sent in 3 s each, they are a second late each from the first on
    late = sent_beside([layer(1.0, 2.0, reduce=3.0)] * 4, pace(1.0), ahead=4)
    assert late.total_s == pytest.approx(4 * 1 + 2 + 4 * 3)


def test_layouts_that_cannot_be() -> None:
    with pytest.raises(InputError, match="layout sharding: expected ddp, zero-1, grad-op, fsdp, hybrid; got 'zero-9'"):
        rk.Layout(sharding="zero-9")
    with pytest.raises(InputError, match="layout: fsdp gathers weights layer by layer; expected pipeline=1"):
        rk.Layout(sharding="fsdp", pipeline=2)
    with pytest.raises(InputError, match="layout instances: they belong to sharding 'zero-1'; got sharding 'ddp'"):
        rk.Layout(sharding="ddp", instances=2)
    with pytest.raises(InputError, match=r"layout expert 2: \S+ has no experts: expected 1"):
        step(expert=2)
    with pytest.raises(InputError, match=r"layout imbalance: expected a number from 1 .* to expert=1 .*; got 1.5"):
        rk.Layout(imbalance=1.5)
    with pytest.raises(InputError, match="llama: heads 16 cannot be cut into 3 equal parts"):
        step(gpus=3, batch=3, seq=64, tensor=3)
    with pytest.raises(InputError, match="expected a multiple of 16 GPUs; got 8"):
        step(tensor=8, pipeline=2)
    with pytest.raises(InputError, match="batch: expected an integer of 1 or more; got 0"):
        step(batch=0)


def test_the_search_finds_what_trying_all_finds() -> None:
    from rooflinekit.api.parallel import place_of
    from rooflinekit.distributed.described import Planner, candidates
    from rooflinekit.distributed.records import recipe_of

    small = LLAMA.with_changes(layers=2)
    found = rk.search_layouts(small, cluster=CLUSTER, gpus=2, batch=4, seq=1024, keep=3)
    place, recipe = place_of(CLUSTER, 2), recipe_of("megatron")
    everything = []
    for layout, recompute in candidates(small, place, 4, 1024):
        own = recipe.with_changes(recompute=recompute)
        everything.append(Planner(decoder=small, layout=layout, recipe=own, batch=4, seq=1024, place=place).step())
    fitting = [one for one in everything if one.memory.fits]
    assert found.best.total_s == pytest.approx(min(one.total_s for one in fitting))
    assert found.front[-1].memory.allocated == pytest.approx(min(one.memory.allocated for one in fitting))
    assert found.considered == len(everything)


def test_activations_wait_on_the_host() -> None:
    def at(layers: int, **layout: object) -> rk.TrainingStep:
        return step(recipe=recipe_of("megatron").with_changes(offload=layers), **layout)  # type: ignore[arg-type]

    none, some = at(0), at(3)
    layer = none.memory.activations - some.memory.activations  # of 8 layers' activations those of 3
    ends = none.memory.activations - 8 * layer / 3
    assert some.memory.host == pytest.approx(layer)
    assert at(7).memory.activations - ends == pytest.approx(2 * layer / 3)  # one computes, one is on its way
    # A layer's bytes over PCIe, each way, for each of 8 micro-batches; beside it the layer computes.
    assert at(6).terms["offload"] == pytest.approx(2 * some.terms["offload"])
    for layout in ({}, {"sharding": "fsdp"}, {"pipeline": 2, "chunks": 2}):
        found, without = at(2, **layout), at(0, **layout)
        assert found.total_s == pytest.approx(sum(found.terms.values()))
        assert 0 < found.terms["offload"] <= (found.total_s - without.total_s) * 1.001 + 1e-3
    with pytest.raises(InputError, match=r"^offload: 8 layers of 8 on a GPU: expected 7 or fewer"):
        at(8)


def test_the_drawn_search_has_a_key_and_axes_from_zero() -> None:
    found = rk.search_layouts(LLAMA.with_changes(layers=2), cluster=CLUSTER, gpus=2, batch=4, seq=1024)
    ax = rk.plot.layouts(found)
    (capacity,) = (line for line in ax.lines if line.get_label() == "the GPU's memory")
    assert capacity.get_xdata()[0] == 80  # GiB of an A100 of 80 GB
    assert (ax.get_xlim()[0], ax.get_ylim()[0]) == (0, 0)
    assert [text.get_text() for text in ax.get_legend().get_texts()] == [  # type: ignore[union-attr]
        "a layout", "the fastest for its memory", "the GPU's memory",
    ]  # fmt: skip
    assert overlaps(ax) == []
    inside = ax.get_window_extent()
    assert ax.texts
    for text in ax.texts:
        box = text.get_window_extent()
        assert inside.x0 <= box.x0
        assert box.x1 <= inside.x1


def test_deterministic_steps_have_a_larger_workspace_where_the_gpu_is_no_hopper() -> None:
    # CUBLAS_WORKSPACE_CONFIG=:4096:8 is 8 x 4 MiB for each of the threads of forward and backward; without it are
    # :4096:2:16:8, which is 2 x 4 MiB and 8 x 16 KiB.
    for cluster, more in (("a100-x8-hdr", 2 * (32 - 8 - 1 / 8)), ("h100-x8-cluster", 0)):
        recipes = (recipe_of("megatron").with_changes(deterministic=on) for on in (False, True))
        peaks = [step(cluster=cluster, recipe=recipe).stages[0].allocated for recipe in recipes]
        assert peaks[1] - peaks[0] == more * 2**20
