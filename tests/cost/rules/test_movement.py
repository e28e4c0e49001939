"""Ops that only move numbers: bytes by hand, no FLOP; and those that cost nothing."""

import pytest
import torch
from learned import Learned, Uses, in_mode, squares
from torch import nn
from torch.nn import functional

from rooflinekit import Input
from rooflinekit.ir.op import Basis
from rooflinekit.ir.sizes import symbol


def test_a_copy_reads_its_inputs_and_writes_its_output(tensor, cost):
    c = cost("cat", [tensor(2, 5), tensor(3, 5)], [tensor(5, 5)])
    assert (c.flop, c.read_bytes, c.write_bytes) == (0, 100, 100)  # 4 · (10 + 15); 4 · 25


def test_a_conversion_reads_one_format_and_writes_the_other(tensor, cost):
    c = cost("_to_copy", [tensor(2, 5)], [tensor(2, 5, dtype="bfloat16")])
    assert (c.flop, c.read_bytes, c.write_bytes) == (0, 40, 20)


def test_a_copy_of_an_expanded_tensor_reads_the_memory_behind_it(tensor, cost):
    c = cost("clone", [tensor(4, 6, stride=(0, 1))], [tensor(4, 6)])
    assert (c.read_bytes, c.write_bytes) == (24, 96)  # 4 · 6; 4 · 4·6


def test_copying_into_a_tensor_does_not_read_it(tensor, cost):
    target, source = tensor(2, 5), tensor(5, dtype="float64")
    c = cost("copy_", [target, source], [target])
    assert (c.read_bytes, c.write_bytes) == (40, 40)  # 8 · 5, broadcast; 4 · 2·5


@pytest.mark.parametrize(
    "kind",
    ["zeros_like", "full_like", "zero_", "fill_", "new_zeros", "ones_like", "_new_zeros_with_same_feature_meta"],
)
def test_filling_writes_and_does_not_read_its_pattern(tensor, cost, kind):
    c = cost(kind, [tensor(2, 5)], [tensor(2, 5)])
    assert (c.flop, c.read_bytes, c.write_bytes) == (0, 0, 40)


@pytest.mark.parametrize("rows", [2, 8])  # x[:8] of eight is a slice too; x[:8, :] is x itself, and no operator
def test_the_gradient_of_a_slice_is_zeros_and_a_copy(tensor, costs, rows):
    zeros, copy = costs("slice_backward", [tensor(rows, 5)], [tensor(8, 5)])
    assert (zeros.read_bytes, zeros.write_bytes, zeros.label) == (0, 160, "zeros")  # 4 · 8·5
    assert (copy.read_bytes, copy.write_bytes, copy.label) == (20 * rows, 20 * rows, "copy")  # 4 · rows·5 each way


def test_the_gradient_of_a_slice_from_the_second_on_is_zeros_and_a_copy(tensor, costs):
    n = symbol("n")
    _, copy = costs("slice_backward", [tensor(n - 1)], [tensor(n)], dim=0, start=1, end=2**63 - 1, step=1)
    assert copy.write_bytes == 4 * (n - 1)


def test_the_gradient_of_a_select_from_one_expanded_number(tensor, costs):
    _, copy = costs("select_backward", [tensor(5, stride=(0,))], [tensor(8, 5)])
    assert (copy.read_bytes, copy.write_bytes) == (4, 20)


@pytest.mark.parametrize(
    ("kind", "shape"), [("linspace", (2, 5)), ("eye", (5, 2)), ("tril_indices", (2, 5)), ("fill", (10,))]
)
def test_making_numbers_in_order_only_writes(tensor, cost, kind, shape):
    c = cost(kind, [], [tensor(*shape)])
    assert (c.flop, c.read_bytes, c.write_bytes) == (0, 0, 40)


def test_powers_in_order_are_a_special_function_each(tensor, cost):
    c = cost("logspace", [], [tensor(10)])
    assert (c.vector_flop, c.special_flop, c.bytes) == (0, 10, 40)


@pytest.mark.parametrize("kind", ["tril", "triu", "flip", "rot90", "roll", "pixel_shuffle", "channel_shuffle"])
def test_rearranging_is_a_copy(tensor, cost, kind):
    c = cost(kind, [tensor(4, 6)], [tensor(4, 6)])
    assert (c.flop, c.read_bytes, c.write_bytes) == (0, 96, 96)


def test_rolling_is_a_copy_for_each_dimension(tensor, costs):
    found = costs("roll", [tensor(4, 6)], [tensor(4, 6)], shifts=(1, 2), dims=(0, 1))
    assert [(c.flop, c.read_bytes, c.write_bytes) for c in found] == [(0, 96, 96)] * 2
    assert len(costs("roll", [tensor(4, 6)], [tensor(4, 6)], shifts=(1,), dims=())) == 1  # of all elements in a row


@pytest.mark.parametrize(("kind", "written"), [("diagonal_copy", (4,)), ("narrow_copy", (2, 2)), ("select_copy", (4,))])
def test_copying_a_view_reads_what_it_writes(tensor, cost, kind, written):
    c = cost(kind, [tensor(100, 4)], [tensor(*written)])
    assert (c.flop, c.read_bytes, c.write_bytes) == (0, 16, 16)


def test_copying_the_parts_of_a_split_reads_all_of_them(tensor, cost):
    c = cost("split_copy", [tensor(6, 4)], [tensor(4, 4), tensor(2, 4)])
    assert (c.read_bytes, c.write_bytes) == (96, 96)


def test_a_functional_copy_does_not_read_its_target(tensor, cost):
    c = cost("copy", [tensor(4, 6), tensor(6)], [tensor(4, 6)])
    assert (c.read_bytes, c.write_bytes) == (24, 96)


@pytest.mark.parametrize(
    ("pad", "y", "filled", "kept"),
    [
        ((1, 2), (2, 3, 8), 192, 120),  # 4 · 2·3·8; all of 4 · 2·3·5
        ((1, -1), (2, 3, 5), 120, 96),  # one side cut: 4 · 2·3·4
        ((0, 0, 1, 0), (2, 4, 5), 160, 120),
    ],
)
def test_padding_fills_the_whole_and_copies_what_is_kept(tensor, costs, pad, y, filled, kept):
    fill, copy = costs("constant_pad_nd", [tensor(2, 3, 5)], [tensor(*y)], pad=pad, value=0.0)
    assert (fill.read_bytes, fill.write_bytes, fill.label) == (0, filled, "fill")
    assert (copy.read_bytes, copy.write_bytes, copy.label) == (kept, kept, "copy")


def test_padding_that_only_cuts_is_a_copy(tensor, cost):
    c = cost("constant_pad_nd", [tensor(2, 3, 5)], [tensor(2, 3, 3)], pad=(-1, -1), value=0.0)
    assert (c.flop, c.read_bytes, c.write_bytes) == (0, 72, 72)  # 4 · 2·3·3


@pytest.mark.parametrize("kind", ["reflection_pad1d", "replication_pad1d"])
def test_padding_with_neighbours_and_its_gradient(tensor, cost, costs, kind):
    c = cost(kind, [tensor(2, 3, 5)], [tensor(2, 3, 7)])
    assert (c.flop, c.read_bytes, c.write_bytes) == (0, 120, 168)  # 4 · 30; 4 · 42
    zeros, added = costs(f"{kind}_backward", [tensor(2, 3, 7), tensor(2, 3, 5)], [tensor(2, 3, 5)])
    assert (zeros.read_bytes, zeros.write_bytes) == (0, 120)
    # 42 gradients added to 30 elements: of the input only the shape is used
    assert (added.vector_flop, added.read_bytes, added.write_bytes) == (42, 288, 120)


def test_the_gradient_of_overlapping_windows(tensor, costs):
    zeros, added = costs("unfold_backward", [tensor(2, 4, 3)], [tensor(2, 6)])
    assert zeros.write_bytes == 48
    assert (added.vector_flop, added.read_bytes, added.write_bytes) == (24, 144, 48)  # 4 · (24 + 12); 4 · 12


@pytest.mark.parametrize(
    ("kind", "x", "y", "filled", "copied"),
    [("diagonal_backward", (4,), (4, 4), 64, 16), ("diag_embed", (2, 3), (2, 3, 3), 72, 24)],
)
def test_a_diagonal_in_a_matrix_is_zeros_and_a_copy(tensor, costs, kind, x, y, filled, copied):
    zeros, copy = costs(kind, [tensor(*x)], [tensor(*y)])
    assert (zeros.write_bytes, copy.read_bytes, copy.write_bytes) == (filled, copied, copied)


def test_blocks_on_a_diagonal_are_copied_one_by_one(tensor, costs):
    zeros, *copies = costs("block_diag", [tensor(2, 3), tensor(1, 4)], [tensor(3, 7)])
    assert zeros.write_bytes == 84
    assert [(c.read_bytes, c.write_bytes) for c in copies] == [(24, 24), (16, 16)]


@pytest.mark.parametrize("kind", ["slice_scatter", "select_scatter", "diagonal_scatter", "as_strided_scatter"])
def test_scattering_into_a_view_copies_the_whole_first(tensor, costs, kind):
    copy, scatter = costs(kind, [tensor(8, 5), tensor(2, 5)], [tensor(8, 5)])
    assert (copy.label, copy.read_bytes, copy.write_bytes) == ("copy", 160, 160)
    assert (scatter.label, scatter.read_bytes, scatter.write_bytes) == ("scatter", 40, 40)


def test_places_of_repeated_elements_are_a_running_sum(tensor, cost):
    c = cost("repeat_interleave", [tensor(3, dtype="int64")], [tensor(7, dtype="int64")])
    assert (c.vector_flop, c.read_bytes, c.write_bytes) == (3, 24, 56)


# --- traced ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.view(8, 3),
        lambda x: x.reshape(-1),
        lambda x: x.t(),
        lambda x: x.permute(1, 0),
        lambda x: x.expand(2, 4, 6),
        lambda x: x[1:, ::2],
        lambda x: x[0],
        lambda x: x.chunk(2)[1],
        lambda x: x.unsqueeze(0).squeeze(0),
        lambda x: x.detach(),
        lambda x: x.contiguous(),
        lambda x: x.unfold(1, 3, 1),
        lambda x: x.unsafe_chunk(2),
    ],
)
def test_views_cost_nothing(traced, view):
    graph = traced(view, (4, 6))
    assert (graph.flop, graph.bytes) == (0, 0)
    assert {priced.basis for priced in graph.priced} <= {Basis.FREE}
    assert all(priced.costs == () for priced in graph.priced)


def test_a_complex_conjugate_is_a_view(traced):
    graph = traced(lambda x: (x.conj(), x.conj().imag), Input(4, 6, dtype="complex64"))
    assert [priced.basis for priced in graph.priced] == [Basis.FREE] * len(graph.priced)


def test_making_a_transposed_tensor_contiguous_is_a_copy(traced):
    graph = traced(lambda x: x.t().contiguous(), (4, 6))
    assert (graph.flop, graph.read_bytes, graph.write_bytes) == (0, 96, 96)


def test_a_traced_slice_and_its_gradient(traced, costs_of):
    graph = traced(Uses(lambda x, weight: weight[2:4] * x, (8, 5)), (2, 5), mode="training")
    zeros, copy = costs_of(graph, "slice_backward")
    assert (zeros.write_bytes, copy.read_bytes, copy.write_bytes) == (160, 40, 40)


def test_writing_into_a_slice_touches_the_slice(traced):
    def overwrite(x, y):
        x[1:3] = y
        return x

    graph = traced(overwrite, (4, 6), (2, 6))
    assert (graph.read_bytes, graph.write_bytes) == (48, 48)  # 4 · 2·6


def test_concatenating_a_tensor_with_itself_reads_it_once(traced):
    graph = traced(lambda x: torch.cat([x, x]), (4, 6))
    assert (graph.read_bytes, graph.write_bytes) == (96, 192)


MOVED = {
    "cat": (lambda x, y: torch.cat([x, y], 1), [(3, 4), (3, 5)]),
    "stack": (lambda x, y: torch.stack([x, y]), [(3, 4), (3, 4)]),
    "hstack": (lambda x, y: torch.hstack([x, y]), [(3, 4), (3, 4)]),
    "dstack": (lambda x, y: torch.dstack([x, y]), [(3, 4), (3, 4)]),
    "block_diag": (lambda x, y: torch.block_diag(x, y), [(3, 4), (2, 4)]),
    "meshgrid": (lambda x, y: torch.meshgrid(x, y, indexing="ij"), [(3,), (4,)]),
    "roll": (lambda x: x.roll(1, 0), [(3, 4)]),
    "flip": (lambda x: x.flip(0), [(3, 4)]),
    "rot90": (lambda x: x.rot90(), [(3, 4)]),
    "repeat": (lambda x: x.repeat(2, 3), [(3, 4)]),
    "tile": (lambda x: x.tile(2, 2), [(3, 4)]),
    "repeat_interleave": (lambda x: x.repeat_interleave(2, 1), [(3, 4)]),
    "repeated as told": (lambda x: x.repeat_interleave(torch.ones(3, dtype=torch.int64), 0, output_size=3), [(3, 4)]),
    "tril": (torch.tril, [(4, 4)]),
    "diag": (torch.diag, [(4,)]),
    "diagonal": (torch.diagonal, [(4, 4)]),
    "diag_embed": (torch.diag_embed, [(2, 4)]),
    "diagonal_scatter": (torch.diagonal_scatter, [(4, 4), (4,)]),
    "slice_scatter": (lambda x, y: torch.slice_scatter(x, y, 0, 1, 3), [(4, 4), (2, 4)]),
    "select_scatter": (lambda x, y: torch.select_scatter(x, y, 0, 1), [(4, 4), (4,)]),
    "as_strided_scatter": (lambda x, y: torch.as_strided_scatter(x, y, (2, 2), (4, 1)), [(3, 4), (2, 2)]),
    "copy_": (lambda x, y: x.clone().copy_(y), [(3, 4), (3, 4)]),
    "fill": (lambda x: torch.fill(x, 2.0), [(3, 4)]),
    "zero_": (lambda x: x.clone().zero_() + x, [(3, 4)]),
    "unfold": (lambda x: x.unfold(1, 3, 1), [(3, 6)]),
    "as_strided": (lambda x: x.as_strided((2, 2), (4, 1)), [(3, 4)]),
    "narrow_copy": (lambda x: x.narrow_copy(0, 1, 2), [(3, 4)]),
    "permute_copy": (lambda x: torch.permute_copy(x, (1, 0)), [(3, 4)]),
    "half": (lambda x: x.half().float(), [(3, 4)]),
    "channels last": (lambda x: x.to(memory_format=torch.channels_last), [(2, 3, 4, 5)]),
    "split": (lambda x: x.split(2), [(4, 4)]),
    "unbind": (lambda x: x.unbind(), [(4, 4)]),
    "tensor_split": (lambda x: x.tensor_split(3), [(4, 4)]),
    "made": (lambda x: x + torch.eye(3, 4) + torch.linspace(0, 1, 4) + torch.logspace(0, 1, 4), [(3, 4)]),
    "cropped": (lambda x: functional.pad(x, (-1, 1)), [(3, 4)]),
}
PADDED = {
    f"{mode} {d}d": (lambda x, d=d, mode=mode: functional.pad(x, (1, 1) * d, mode=mode), [(2, 3, *(5,) * d)])
    for d in (1, 2, 3)
    for mode in ("constant", "reflect", "replicate", "circular")
}


@pytest.mark.parametrize("mode", ["inference", "training"])
@pytest.mark.parametrize(("function", "shapes"), (MOVED | PADDED).values(), ids=MOVED | PADDED)
def test_everything_that_moves_numbers_has_a_rule(traced, function, shapes, mode):
    assert traced(Learned(function), *shapes, **in_mode(mode)).coverage.bytes_share == 1


def test_zero_padding_and_its_gradient(traced, costs_of):
    graph = traced(Learned(nn.ZeroPad2d(1)), ("batch", 2, 4, 6), mode="training", loss=squares)
    fill, copy, back = costs_of(graph, "constant_pad_nd")
    assert str(fill.write_bytes) == "384*batch"  # 4 · 2·6·8
    # the gradient is cut to size: a copy
    assert str(copy.read_bytes) == str(back.read_bytes) == str(back.write_bytes) == "192*batch"  # 4 · 2·4·6
