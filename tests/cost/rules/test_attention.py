"""Fused attention: exact causal counts, grouped heads as stored, five products in the backward pass."""

import functools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from rooflinekit import Input
from rooflinekit.cost.rules.attention import score_pairs
from rooflinekit.ir.sizes import symbol

ATTENTION = "_scaled_dot_product_{}_attention"
BACKWARD = "_scaled_dot_product_{}_attention_backward"


class Projected(nn.Module):
    """Attention whose query, key and value all need a gradient, without a matrix product beside it."""

    def __init__(self, **options):
        super().__init__()
        self.factors = nn.Parameter(torch.ones(3))
        self.attend = functools.partial(functional.scaled_dot_product_attention, **options)

    def forward(self, query, key, value, *mask):
        q, k, v = (x * factor for x, factor in zip((query, key, value), self.factors, strict=True))
        return self.attend(q, k, v, *mask)


# --- pairs of query and key -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("queries", "keys", "pairs"),
    [
        (1, 1, 1),
        (4, 4, 10),  # 1 + 2 + 3 + 4
        (1024, 1024, 524800),  # 1024 · 1025 / 2
        (3, 6, 6),  # 1 + 2 + 3: the last keys are seen by none
        (5, 3, 12),  # 1 + 2 + 3 + 3 + 3: later queries see all keys
    ],
)
def test_causal_pairs(queries, keys, pairs):
    assert score_pairs(queries, keys, causal=True) == pairs


@settings(deadline=None)
@given(st.integers(1, 40), st.integers(1, 40))
def test_causal_pairs_are_those_of_the_mask(queries, keys):
    mask = sum(key <= query for query in range(queries) for key in range(keys))
    assert score_pairs(queries, keys, causal=True) == mask
    assert score_pairs(queries, keys, causal=False) == queries * keys


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 40), st.integers(1, 40))
def test_causal_pairs_of_named_sizes_are_those_of_numbers(queries, keys):
    formula = score_pairs(symbol("s"), symbol("t"), causal=True)
    assert formula.subs({symbol("s"): queries, symbol("t"): keys}) == score_pairs(queries, keys, causal=True)


# --- by hand --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("library", ["flash", "efficient", "cudnn"])
def test_attention_forward_by_hand(tensor, cost, library):
    q, k, v = tensor(2, 3, 6, 8), tensor(2, 3, 5, 8), tensor(2, 3, 5, 4)
    c = cost(ATTENTION.format(library), [q, k, v], [tensor(2, 3, 6, 4), tensor(2, 3, 6)], is_causal=False)
    # 2·3 · 6·5 = 180 pairs
    assert c.matrix_flop == 4320  # scores 2 · 180·8, weighted values 2 · 180·4
    assert c.dense_matrix_flop == 4320
    assert c.vector_flop == 720  # scale, maximum, subtract, sum: 4 · 180
    assert c.special_flop == 324  # exp: 180; division of 2·3·6·4 outputs: 144
    assert c.read_bytes == 2592  # 4 · (2·3·6·8 + 2·3·5·8 + 2·3·5·4)
    assert c.write_bytes == 720  # 4 · (2·3·6·4 + 2·3·6)


def test_causal_attention_needs_the_triangle_and_keeps_the_dense_count(tensor, cost):
    q, k, v = (tensor(2, 3, 6, 8) for _ in range(3))
    c = cost(ATTENTION.format("flash"), [q, k, v], [tensor(2, 3, 6, 8), tensor(2, 3, 6)], is_causal=True)
    # 2·3 · 21 = 126 pairs of 216
    assert c.matrix_flop == 4032  # 2 products · 2 · 126·8
    assert c.dense_matrix_flop == 6912  # 2 products · 2 · 216·8
    assert (c.vector_flop, c.special_flop) == (504, 414)  # 4 · 126; 126 exp and 288 divisions


def test_attention_backward_by_hand(tensor, cost):
    grad, q, k, v, out = (tensor(2, 3, 6, 8) for _ in range(5))
    inputs, outputs = [grad, q, k, v, out, tensor(2, 3, 6)], [tensor(2, 3, 6, 8) for _ in range(3)]
    dense = cost(BACKWARD.format("flash"), inputs, outputs, is_causal=False)
    causal = cost(BACKWARD.format("flash"), inputs, outputs, is_causal=True)
    assert dense.matrix_flop == 17280  # scores, and the gradients of value, weights, query, key: 5 · 2 · 216·8
    assert causal.matrix_flop == 10080  # 5 · 2 · 126·8
    assert causal.dense_matrix_flop == 17280
    # scale, subtract, and three for the gradient of a score: 5 · 216; gradient times output, summed: 2 · 288
    assert dense.vector_flop == 1656
    assert dense.special_flop == 216  # exp again
    assert dense.read_bytes == 5904  # 4 · (5 · 288 + 36)
    assert dense.write_bytes == 3456  # 4 · 3 · 288


def test_backward_with_values_of_another_width(tensor, cost):
    q, k, v, grad = tensor(1, 1, 6, 8), tensor(1, 1, 5, 8), tensor(1, 1, 5, 3), tensor(1, 1, 6, 3)
    c = cost(BACKWARD.format("flash"), [grad, q, k, v], [q, k, v], is_causal=False)
    # scores, and the gradients of query and key, contract or give 8; those of value and weights 3
    assert c.matrix_flop == 1800  # 2 · 30 · (3·8 + 2·3)


# --- traced ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("queries", "keys", "pairs"),
    [(6, 6, 21), (3, 6, 6), (6, 3, 15)],  # 6·7/2; 1+2+3; 1+2+3+3+3+3
)
@pytest.mark.parametrize(("dtype", "library"), [("float32", "efficient"), ("bfloat16", "flash")])
def test_traced_causal_attention_forward_and_backward(traced, costs_of, dtype, library, queries, keys, pairs):
    q, k = Input(2, 4, queries, 8, dtype=dtype), Input(2, 4, keys, 8, dtype=dtype)
    graph = traced(Projected(is_causal=True), q, k, k, mode="training", dtype=dtype)
    (forward,) = costs_of(graph, ATTENTION.format(library))
    (backward,) = costs_of(graph, BACKWARD.format(library))
    assert forward.matrix_flop == 2 * 2 * 8 * (8 * pairs)  # two products, 2·4 heads, width 8
    assert backward.matrix_flop == 5 * 2 * 8 * (8 * pairs)  # five
    assert graph.matrix_flop == forward.matrix_flop + backward.matrix_flop
    assert graph.dense_matrix_flop == 7 * 2 * 8 * (8 * queries * keys)


def test_grouped_heads_in_bfloat16_are_read_as_stored(traced, costs_of):
    q, k = Input(2, 4, 6, 8, dtype="bfloat16"), Input(2, 2, 6, 8, dtype="bfloat16")
    attend = functools.partial(functional.scaled_dot_product_attention, enable_gqa=True)
    graph = traced(attend, q, k, Input(2, 2, 6, 8, dtype="bfloat16"))
    (c,) = costs_of(graph, ATTENTION.format("flash"))
    assert c.matrix_flop == 9216  # all 4 heads multiply: 2 · 2 · 2·4 · 6·6 · 8
    assert c.read_bytes == 1536  # 2 · (2·4·6·8 + 2 · 2·2·6·8)
    assert costs_of(graph, "clone") == []  # nothing is repeated


def test_decoding_works_on_heads_that_share_keys_together(tensor, cost):
    q, k = tensor(2, 32, 1, 128), tensor(2, 8, 1000, 128)
    c = cost(ATTENTION.format("flash"), [q, k, k], [q], is_causal=False)
    # 4 heads to each of 8 keys' heads: their queries are the 4 rows of 2·8 products
    assert [(g.batch, g.m, g.n, g.k) for g in c.gemms] == [(16, 4, 1000, 128), (16, 4, 128, 1000)]
    assert c.matrix_flop == 32768000  # 2 · 2 · 2·32 · 1000 · 128, as with keys of their own
    alone = cost(ATTENTION.format("flash"), [tensor(2, 32, 2, 128), k, k], [tensor(2, 32, 2, 128)], is_causal=False)
    assert [(g.batch, g.m) for g in alone.gemms] == [(64, 2), (64, 2)]


def test_an_additive_mask_is_read_as_stored_and_added_to_each_score(traced, costs_of):
    mask = Input(6, 6)
    graph = traced(Projected(), *3 * [(2, 3, 6, 8)], mask, mode="training")
    (forward,) = costs_of(graph, ATTENTION.format("efficient"))
    (backward,) = costs_of(graph, BACKWARD.format("efficient"))
    assert forward.matrix_flop == 6912  # 2 · 2 · 216·8: a mask skips nothing
    assert forward.vector_flop == 1080  # 5 · 216
    assert forward.read_bytes == 3600  # 4 · (3 · 2·3·6·8 + 6·6): not 2·3 times the mask
    assert backward.vector_flop == 1872  # 6 · 216 + 2 · 288


def test_named_sizes_of_causal_attention(traced):
    graph = traced(functools.partial(functional.scaled_dot_product_attention, is_causal=True), *3 * [("b", 2, "s", 8)])
    assert graph.at(b=3, s=7).matrix_flop == 5376  # 2 · 2 · 3·2 · 7·8/2 · 8
    assert graph.at(b=3, s=7).dense_matrix_flop == 9408  # 2 · 2 · 3·2 · 7·7 · 8


def test_inference_keeps_no_statistics_for_a_backward_pass(traced, costs_of):
    graph = traced(functional.scaled_dot_product_attention, *3 * [(2, 3, 6, 8)])
    (c,) = costs_of(graph, ATTENTION.format("efficient"))
    assert c.write_bytes == 1168  # 4 · 2·3·6·8 and two 8-byte counters of the random state


def test_flexible_attention_is_counted_dense(tensor, cost):
    q, k, v = (tensor(2, 3, 16, 8) for _ in range(3))
    c = cost("higher_order.flex_attention", [q, k, v], [tensor(2, 3, 16, 8), tensor(2, 3, 16)])
    assert c.matrix_flop == 49152  # two products, 2 · 6·16·16·8 each
    assert (c.vector_flop, c.special_flop) == (6144, 2304)  # 4 and an exp for each of 6·256; a division for each of 768
    assert (c.read_bytes, c.write_bytes) == (9216, 3456)  # 4 · 3·768; 4 · (768 + 96)
