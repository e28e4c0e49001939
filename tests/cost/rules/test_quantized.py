"""Quantized products and conversions: multiply-adds as of plain numbers, bytes of the packed ones."""

import pytest

# --- products -------------------------------------------------------------------------------------------------


def test_groups_of_eight_bit_products(tensor, cost):
    a, b = tensor(8, 16, dtype="float8_e4m3fn"), tensor(2, 16, 32, dtype="float8_e4m3fn")
    y = tensor(8, 32, dtype="bfloat16")
    c = cost("_scaled_grouped_mm", [a, b, tensor(8), tensor(2, 32), tensor(2, dtype="int32")], [y])
    assert c.matrix_flop == 8192  # the rows are dealt out: 2 · 8·32·16
    assert c.vector_flop == 256  # a scale for each of 8·32
    assert c.read_bytes == 1448  # 128 and 1024 of one byte; 4 · (8 + 64); 4 · 2
    assert c.write_bytes == 512
    batch = cost("_scaled_grouped_mm", [tensor(2, 8, 16, dtype="float8_e4m3fn"), b], [tensor(2, 8, 32)])
    assert batch.matrix_flop == 16384  # 2 · 2·8·32·16


def test_int8_products(tensor, cost):
    c = cost("_int_mm", [tensor(4, 8, dtype="int8"), tensor(8, 6, dtype="int8")], [tensor(4, 6, dtype="int32")])
    assert (c.matrix_flop, c.vector_flop) == (384, 0)  # 2 · 4·8·6
    assert (c.read_bytes, c.write_bytes) == (80, 96)  # 32 + 48; 4 · 24


def test_int8_products_of_bitsandbytes(tensor, cost):
    """A row of the input has a scale, a row of the weight another: both, and a bias, come after the product."""
    rows, columns = tensor(4), tensor(6)
    inputs = [tensor(4, 8, dtype="int8"), tensor(6, 8, dtype="int8"), rows, columns]
    c = cost("bitsandbytes.int8_scaled_mm", inputs, [tensor(4, 6, dtype="float16")], bias=None)
    assert (c.matrix_flop, c.vector_flop) == (384, 48)  # 2 · 4·6·8; 2 · 4·6
    assert (c.read_bytes, c.write_bytes) == (120, 48)  # 32 + 48 + 4·4 + 4·6; 2 · 24
    q = cost(
        "bitsandbytes.int8_vectorwise_quant", [tensor(4, 8)], [tensor(4, 8, dtype="int8"), tensor(4)], threshold=0.0
    )
    assert q.vector_flop == 7 * 32  # the largest of a row 2, then as any quantization 5


def test_a_weight_of_eight_bits(tensor, cost):
    x, w, scales = tensor(4, 8, dtype="bfloat16"), tensor(6, 8, dtype="int8"), tensor(6, dtype="bfloat16")
    c = cost("_weight_int8pack_mm", [x, w, scales], [tensor(4, 6, dtype="bfloat16")])
    assert (c.matrix_flop, c.vector_flop) == (384, 24)  # 2 · 4·8·6; a scale for each of 4·6
    assert (c.read_bytes, c.write_bytes) == (124, 48)  # 64 + 48 + 12; 2 · 24


@pytest.mark.parametrize(
    ("activation", "vector", "special"),
    [(None, 48, 0), ("none", 48, 0), ("relu", 72, 0), ("silu", 120, 48)],  # scale and bias; 1; 3 and 2
)
def test_mixed_formats(tensor, cost, activation, vector, special):
    x, w, scales, bias = (
        tensor(2, 2, 8, dtype="float16"),
        tensor(8, 6, dtype="int8"),
        *(tensor(6, dtype="float16") for _ in range(2)),
    )
    y = tensor(2, 2, 6, dtype="float16")
    c = cost("_mixed_dtypes_linear", [x, w, scales, bias], [y], bias=bias, activation=activation)
    assert (c.matrix_flop, c.vector_flop, c.special_flop) == (384, vector, special)  # 4 rows of 6·8
    assert (c.read_bytes, c.write_bytes) == (136, 48)  # 64 + 48 + 12 + 12


def test_a_weight_of_four_bits(tensor, cost):
    # 16 outputs, 64 inputs, groups of 32: 512 bytes in tiles of int32, scale and zero point for each of 2·16
    x, w = tensor(3, 64, dtype="bfloat16"), tensor(2, 1, 32, 2, dtype="int32")
    scales = tensor(2, 16, 2, dtype="bfloat16")
    c = cost("_weight_int4pack_mm", [x, w, scales], [tensor(3, 16, dtype="bfloat16")])
    assert c.matrix_flop == 6144  # 2 · 3·16·64
    assert c.vector_flop == 2048  # two operations for each of 16·64 weights
    assert (c.read_bytes, c.write_bytes) == (1024, 96)  # 384 + 512 + 128; 2 · 48


def test_a_dynamic_linear_layer(tensor, cost):
    c = cost("quantized.linear_dynamic", [tensor(4, 8)], [tensor(4, 6)])
    assert c.matrix_flop == 384
    assert c.vector_flop == 296  # range 2 and conversion 5 of 32; back 2 and bias 1 of 24
    assert (c.read_bytes, c.write_bytes) == (176, 96)  # 128 and 48 of the weight


# --- conversions ----------------------------------------------------------------------------------------------

THERE = ("per_tensor", "per_channel", "per_channel_group", "per_token")


@pytest.mark.parametrize("form", THERE)
def test_there_and_back(tensor, cost, form):
    there = cost(f"quantized_decomposed.quantize_{form}", [tensor(4, 8)], [tensor(4, 8, dtype="int8")])
    assert (there.vector_flop, there.read_bytes, there.write_bytes) == (160, 128, 32)  # ×, round, +, two bounds
    back = cost(f"quantized_decomposed.dequantize_{form}", [tensor(4, 8, dtype="int8")], [tensor(4, 8)])
    assert (back.vector_flop, back.read_bytes, back.write_bytes) == (64, 32, 128)  # -, ×


@pytest.mark.parametrize("form", ["", "_symmetric", "_per_token", "_per_token_asymmetric"])
def test_ranges(tensor, cost, form):
    c = cost(f"quantized_decomposed.choose_qparams{form}", [tensor(4, 8)], [tensor(), tensor(dtype="int64")])
    assert (c.vector_flop, c.read_bytes, c.write_bytes) == (64, 128, 12)


FAKE = (
    "fake_quantize_per_tensor_affine_cachemask",
    "fake_quantize_per_channel_affine_cachemask",
    "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams",
)


@pytest.mark.parametrize("kind", FAKE)
def test_fake_quantization_keeps_a_mask(tensor, cost, kind):
    c = cost(kind, [tensor(4, 8)], [tensor(4, 8), tensor(4, 8, dtype="bool")])
    assert c.vector_flop == 256  # 32 · (5 + 2 + 1)
    assert (c.read_bytes, c.write_bytes) == (128, 160)


@pytest.mark.parametrize("kind", [f"{kind}_backward" for kind in FAKE[:2]])
def test_its_gradient_is_times_the_mask(tensor, cost, kind):
    c = cost(kind, [tensor(4, 8), tensor(4, 8, dtype="bool")], [tensor(4, 8)])
    assert (c.vector_flop, c.read_bytes, c.write_bytes) == (32, 160, 128)


def test_observed_fake_quantization(tensor, costs):
    x = tensor(4, 8)
    inputs = [x, tensor(1, dtype="int64"), tensor(1, dtype="int64"), tensor(), tensor(), tensor(1), tensor(1)]
    observed, quantized = costs("_fused_moving_avg_obs_fq_helper", inputs, [tensor(4, 8), tensor(4, 8, dtype="bool")])
    assert (observed.vector_flop, observed.read_bytes, observed.write_bytes) == (64, 128, 0)
    assert (quantized.vector_flop, quantized.read_bytes, quantized.write_bytes) == (256, 128, 160)
