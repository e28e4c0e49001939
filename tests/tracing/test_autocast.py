"""Autocast regions: each operator in the format that CUDA's lists give it, and gradients back through the casts."""

import pytest
import torch
from torch import nn
from torch.nn import functional

import rooflinekit as rk
from rooflinekit.errors import InputError, TraceError

HALF, FULL = "float16", "float32"


class Region(nn.Module):
    """Calls a function within an autocast region."""

    def __init__(self, function, device="cuda", dtype=torch.float16, **options):
        super().__init__()
        self.function = function
        self.parts = nn.ModuleList([function] if isinstance(function, nn.Module) else [])
        self.device, self.dtype, self.options = device, dtype, options

    def forward(self, *inputs):
        with torch.autocast(self.device, self.dtype, **self.options):
            return self.function(*inputs)


def formats(graph, phase=None):
    """Kind, formats in and formats out of each op that launches something."""
    return [
        (
            p.op.kind.removeprefix("aten."),
            [t.dtype.value for t in p.op.inputs],
            [t.dtype.value for t in p.op.outputs],
        )
        for p in graph.priced
        if p.costs and phase in (None, p.op.phase)
    ]


def test_a_linear_layer_casts_input_weight_and_bias():
    graph = rk.trace(Region(nn.Linear(8, 4)), rk.Input(3, 8))
    cast = ("_to_copy", [FULL], [HALF])
    assert formats(graph) == [cast, cast, cast, ("addmm", [HALF] * 3, [HALF])]
    # 24 + 32 + 4 numbers read at 4 bytes and written at 2, then read at 2; 12 written at 2
    assert graph.read_bytes == 60 * 4 + 60 * 2
    assert graph.write_bytes == 60 * 2 + 12 * 2
    assert graph.outputs[0].dtype == HALF


def test_gradients_come_back_through_the_casts():
    graph = rk.trace(Region(nn.Linear(8, 4)), rk.Input(3, 8), mode="training")
    backward = formats(graph, "backward")
    # the weight's gradient [4, 3] × [3, 8] and the bias's sum in half precision, each cast to float32
    assert [one for one in backward if one[0] in ("mm", "sum", "_to_copy")] == [
        ("mm", [HALF, HALF], [HALF]),
        ("sum", [HALF], [HALF]),
        ("_to_copy", [HALF], [FULL]),
        ("_to_copy", [HALF], [FULL]),
    ]
    assert {g.dtype for g in graph.gradients} == {FULL}
    assert graph.matrix_flop == 2 * 2 * 3 * 8 * 4  # forward, and the gradient of the weight


class Network(nn.Module):
    """Convolution, normalizations, linear layer and softmax."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, bias=False)
        self.batch_norm = nn.BatchNorm2d(4)
        self.linear = nn.Linear(4, 5)
        self.layer_norm = nn.LayerNorm(5)

    def forward(self, x):
        x = torch.relu(self.batch_norm(self.conv(x)))
        x = self.linear(x.mean((2, 3)))
        return self.layer_norm(x).softmax(-1)


def test_each_operator_takes_the_format_of_the_lists():
    graph = rk.trace(
        Network(),
        rk.Input("n", 3, 8, 8),
        mode="training",
        loss=functional.cross_entropy,
        targets=[rk.Input("n", dtype="int64")],
        autocast="float16",
    )
    found = {kind: (given, made) for kind, given, made in formats(graph, "forward") if kind != "_to_copy"}
    assert found["convolution"] == ([HALF, HALF], [HALF])
    # batch normalization is in no list: half precision in and out, float32 weights and statistics
    assert found["native_batch_norm"] == ([HALF, FULL, FULL, FULL, FULL], [HALF, FULL, FULL])
    assert found["relu"] == ([HALF], [HALF])
    assert found["mean"] == ([HALF], [HALF])
    assert found["addmm"] == ([HALF] * 3, [HALF])
    assert found["native_layer_norm"] == ([FULL] * 3, [FULL] * 3)
    assert found["_softmax"] == ([FULL], [FULL])
    assert found["nll_loss_forward"] == ([FULL, "int64"], [FULL, FULL])
    # casts: image and two weights, one bias, and the input of the layer norm
    assert [kind for kind, _, _ in formats(graph, "forward")].count("_to_copy") == 5
    assert graph.dims == ("n",)
    assert {g.dtype for g in graph.gradients} == {FULL}


def test_a_weight_is_cast_once_a_region():
    layer = nn.Linear(4, 4, bias=False)
    twice = nn.Sequential(layer, layer)
    # the input and the weight; what the first call returns is in half precision
    assert [kind for kind, _, _ in formats(rk.trace(Region(twice), rk.Input(3, 4)))].count("_to_copy") == 2
    region = Region(layer)
    two_regions = rk.trace(lambda x: region(region(x)), rk.Input(3, 4))
    assert [kind for kind, _, _ in formats(two_regions)].count("_to_copy") == 3
    uncached = rk.trace(Region(twice, cache_enabled=False), rk.Input(3, 4))
    assert [kind for kind, _, _ in formats(uncached)].count("_to_copy") == 3


def test_a_region_that_is_switched_off_inside():
    def model(x):
        first = x @ x
        with torch.autocast("cuda", enabled=False):
            second = x @ x
        return first, second, x @ x

    graph = rk.trace(Region(model), rk.Input(3, 3))
    assert [t.dtype.value for t in graph.outputs] == [HALF, FULL, HALF]
    off = rk.trace(Region(lambda x: x @ x, enabled=False), rk.Input(3, 3))
    assert formats(off) == [("mm", [FULL, FULL], [FULL])]


def test_the_device_of_the_inputs_stands_for_the_gpu():
    def model(x):
        with torch.autocast(x.device.type):
            return torch.is_autocast_enabled(), torch.get_autocast_dtype("cuda"), torch.exp(x @ x)

    graph = rk.trace(model, rk.Input(3, 3))
    # CUDA's default is float16, and there the exponential is taken in float32
    cast = ("_to_copy", [FULL], [HALF])
    assert formats(graph) == [
        cast,
        cast,
        ("mm", [HALF, HALF], [HALF]),
        ("_to_copy", [HALF], [FULL]),
        ("exp", [FULL], [FULL]),
    ]


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_softmax_reads_half_precision_and_writes_float32(name, dtype):
    given = str(dtype).removeprefix("torch.")
    graph = rk.trace(Region(lambda x: getattr(x, name)(-1), dtype=dtype), rk.Input(3, 4, dtype=given))
    one = [(f"_{name}", [HALF], [FULL])]
    two = [("_to_copy", ["bfloat16"], [FULL]), (f"_{name}", [FULL], [FULL])]
    assert formats(graph) == (one if given == HALF else two)


@pytest.mark.parametrize("function", [functional.softmax, torch.softmax, torch.Tensor.softmax])
def test_softmax_in_float32_is_one_kernel_outside_of_regions_too(function):
    graph = rk.trace(lambda x: function(x, dim=-1, dtype=torch.float32), rk.Input(3, 4, dtype=HALF))
    assert formats(graph) == [("_softmax", [HALF], [FULL])]


def test_sums_and_norms_write_float32():
    def model(x):
        return x.sum(), x.cumsum(0), x.norm(), x.norm(2, 1), torch.linalg.vector_norm(x)

    graph = rk.trace(Region(model), rk.Input(3, 4, dtype=HALF))
    assert [t.dtype.value for t in graph.outputs] == [FULL] * 5


def test_the_widest_format_wins():
    def model(half, full):
        return torch.addcmul(half, half, full), torch.addcmul(half, half, half), torch.cat([half, full])

    graph = rk.trace(Region(model), rk.Input(4, dtype=HALF), rk.Input(4))
    assert [t.dtype.value for t in graph.outputs] == [FULL, HALF, FULL]


def test_integers_and_doubles_stay():
    graph = rk.trace(Region(lambda x: x @ x), rk.Input(3, 3, dtype="float64"))
    assert formats(graph) == [("mm", ["float64"] * 2, ["float64"])]


def test_attention_takes_the_fused_kernel_of_half_precision():
    def attend(q):
        return functional.scaled_dot_product_attention(q, q, q)

    graph = rk.trace(attend, rk.Input(2, 4, 5, 16), autocast="bfloat16")
    assert [kind for kind, _, _ in formats(graph)][-1] == "_scaled_dot_product_flash_attention"
    assert graph.outputs[0].dtype == "bfloat16"


def test_recurrent_layers_cast_their_weights_at_every_call():
    layer = nn.LSTM(4, 4)
    graph = rk.trace(lambda x: layer(layer(x)[0])[0], rk.Input(3, 2, 4), autocast="float16")
    lstm = [given for kind, given, _ in formats(graph) if kind == "_cudnn_rnn"]
    assert [set(given) for given in lstm] == [{HALF}, {HALF}]
    # four weights twice; the input and two states once, for the second layer's states follow its input
    assert [kind for kind, _, _ in formats(graph)].count("_to_copy") == 11


def test_checkpointing_recomputes_in_the_same_format():
    from torch.utils.checkpoint import checkpoint

    layer = nn.Linear(4, 4, bias=False)
    graph = rk.trace(
        Region(lambda x: checkpoint(lambda y: layer(y).sigmoid(), x, use_reentrant=False)),
        rk.Input(3, 4),
        mode="training",
    )
    assert {tuple(given) for kind, given, _ in formats(graph) if kind == "mm"} == {(HALF, HALF)}
    assert graph.matrix_flop == 3 * 2 * 3 * 4 * 4  # forward, again, and the gradient of the weight


def test_what_cuda_refuses_is_refused():
    with pytest.raises(TraceError, match="binary_cross_entropy is unsafe to autocast"):
        rk.trace(Region(lambda x: functional.binary_cross_entropy(x, x)), rk.Input(4))


def test_an_unknown_format_is_refused():
    with pytest.raises(InputError) as error:
        rk.trace(nn.Linear(2, 2), rk.Input(3, 2), autocast="int8")
    assert str(error.value) == "autocast: expected 'float16' ('fp16'), 'bfloat16' ('bf16') or None; got 'int8'"


def test_everything_is_as_before():
    def own():
        with torch.autocast("cpu", torch.bfloat16):
            return (torch.ones(2, 2) @ torch.ones(2, 2)).dtype, torch.ones(2).exp().dtype

    names = torch.autocast.__init__, torch.autocast.__enter__, torch.autocast.__exit__, torch.clear_autocast_cache
    before = own()
    with torch.autocast("cpu", torch.bfloat16):
        graph = rk.trace(nn.Linear(2, 2), rk.Input(3, 2))  # a region around the call is none of the model
        assert torch.is_autocast_enabled("cpu")
    assert formats(graph) == [("addmm", [FULL] * 3, [FULL])]
    rk.trace(nn.Linear(2, 2), rk.Input(3, 2), autocast="float16")
    assert own() == before == (torch.bfloat16, torch.float32)
    assert not torch.is_autocast_enabled("cuda")
    assert names == (
        torch.autocast.__init__, torch.autocast.__enter__, torch.autocast.__exit__, torch.clear_autocast_cache,
    )  # fmt: skip
