"""A described step's memory: against the blocks of the same step's graph, and by hand."""

import pytest

import rooflinekit as rk
from rooflinekit.api.parallel import place_of
from rooflinekit.distributed.accounts import Accounts, weight_itemsize
from rooflinekit.distributed.described import Planner
from rooflinekit.distributed.records import RECIPES

LLAMA = rk.Decoder(
    name="llama", layers=4, hidden=1024, heads=8, kv_heads=8, head_dim=128, ffn=4096, vocab=32000
)  # fmt: skip
# The embedding's table and the output's matrix; of a layer four square matrices, three of the network, two gains; the
# last norm's gain.
NUMBERS = 2 * 32000 * 1024 + 4 * (4 * 1024**2 + 3 * 1024 * 4096 + 2 * 1024) + 1024


def moments(recipe: str, gpus: int = 1, micro_batch: int = 4, **layout: str) -> dict[str, Accounts]:
    """Of the first stage."""
    place = place_of("h100-x8-cluster", gpus)
    planner = Planner(
        decoder=LLAMA, layout=rk.Layout(micro_batch=micro_batch, **layout), recipe=RECIPES[recipe],  # type: ignore[arg-type]
        batch=gpus * micro_batch, seq=1024, place=place,
    )  # fmt: skip
    return {one.moment: one for one in planner.courses()[0]}


@pytest.mark.parametrize("micro_batch", [1, 8])
@pytest.mark.parametrize("recipe", ["pytorch", "huggingface", "torchtitan", "llm-foundry", "megatron"])
def test_a_gpu_alone_needs_what_the_blocks_of_its_graph_need(recipe: str, micro_batch: int) -> None:
    graph = rk.training_graph(LLAMA, batch=micro_batch, seq=1024, recipe=recipe)
    blocks = rk.predict(graph, "nvidia-h100-sxm5-80gb").memory.peak_bytes
    told = max(one.allocated for one in moments(recipe, micro_batch=micro_batch, sharding="ddp").values())
    assert told == pytest.approx(blocks, rel=0.02)


def test_a_plain_loss_needs_its_logits_four_times() -> None:
    # The logits that Python holds, in 16 bits; log_softmax, nll_loss's gradient and its own, each in fp32.
    begins = moments("torchtitan", sharding="ddp")["backward begins"]
    logits = 4 * 1024 * 32000
    layers = moments("torchtitan", sharding="ddp", micro_batch=4)["backward ends"]
    assert begins.working + begins.activations > (2 + 4 + 4 + 4) * logits
    assert layers.working == pytest.approx(2 * logits, rel=0.5)


def test_copies_of_torch_keep_buckets_beside_gradients() -> None:
    one, two = (moments("pytorch", gpus, sharding="ddp")["backward ends"] for gpus in (1, 2))
    assert one.gradients == two.gradients == 2 * NUMBERS
    assert two.buffers - one.buffers == 2 * NUMBERS


def test_gradients_of_16_bits_stand_beside_their_sums_until_backward_ends() -> None:
    found = moments("nanotron", 8, sharding="zero-1")
    assert found["backward begins"].gradients == 4 * NUMBERS
    assert found["backward ends"].gradients == (4 + 2) * NUMBERS
    assert found["update"].gradients == 4 * NUMBERS


def test_a_first_micro_batch_has_no_gradients_before_its_backward() -> None:
    assert moments("pytorch")["backward begins"].gradients == 0
    assert moments("megatron")["backward begins"].gradients == 4 * NUMBERS  # views of a buffer that stays


def test_shards_without_fp32_copies_are_weights_too() -> None:
    alone, shards = moments("pytorch", sharding="ddp")["update"], moments("pytorch", 8, sharding="fsdp")["update"]
    gathered = 2 * (2 * 32000 * 1024 + 1024)  # bytes of the ends; what comes next is gathered meanwhile
    assert alone.weights == 2 * NUMBERS
    assert shards.weights == pytest.approx(2 * NUMBERS / 8 + 2 * gathered)


def test_adam_of_many_tensors_makes_all_roots_at_once() -> None:
    assert moments("llm-foundry", sharding="ddp")["update"].working >= 4 * NUMBERS  # of moments in fp32
    assert moments("torchtitan", sharding="ddp")["update"].working < 4 * NUMBERS  # fused: none


@pytest.mark.parametrize(
    ("layers", "stages", "chunks", "found"),
    [
        (4, 4, 1, [1, 1, 1, 1]),
        (6, 4, 1, [1, 2, 2, 1]),  # with the ends, two each
        (7, 4, 1, [2, 2, 2, 1]),  # nine: the first stage has the ninth
        (5, 2, 2, [1, 2, 2, 0]),  # seven in four: the last chunk has the head alone
        (126, 8, 8, [1, *[2] * 62, 1]),
    ],
)
def test_the_ends_count_as_a_layer_each_where_layers_cannot_be_shared_out_evenly(
    layers: int, stages: int, chunks: int, found: list[int]
) -> None:
    planner = Planner(
        decoder=LLAMA.with_changes(layers=layers), layout=rk.Layout(pipeline=stages, chunks=chunks),
        recipe=RECIPES["megatron"], batch=64, seq=1024, place=place_of("h100-x8-cluster", 8),
    )  # fmt: skip
    assert planner.layers_of() == found
    assert sum(found) == layers


def test_weights_of_8_bits_lie_in_both_orders_where_products_take_one() -> None:
    hopper, blackwell = rk.load_device("nvidia-h100-sxm5-80gb"), rk.load_device("nvidia-b200-sxm-180gb")
    nemo = RECIPES["nemo"]
    assert [weight_itemsize(gpu, nemo.with_changes(fp8=True)) for gpu in (hopper, blackwell)] == [2, 1]
    assert [weight_itemsize(blackwell, recipe) for recipe in (nemo, RECIPES["megatron"].with_changes(fp8=True))] == [
        2,
        2,
    ]
    one, two = (
        Planner(
            decoder=LLAMA, layout=rk.Layout(), recipe=nemo.with_changes(fp8=fp8), batch=8, seq=1024,
            place=place_of("b200-x8-cluster", 8),
        ).courses()[0][0] for fp8 in (True, False)
    )  # fmt: skip
    ends = 2 * 32000 * 1024 + 1024
    assert two.weights - one.weights == NUMBERS - ends
