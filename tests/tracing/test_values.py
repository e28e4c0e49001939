"""Numbers that follow from constants are known where a model's code asks for them."""

import pytest
import torch
from torch import nn

import rooflinekit as rk
from rooflinekit.errors import InputError, SizeError, TraceError

X = rk.Input("n", 8)
GIVEN = torch.tensor([3, 1, 2])


class Buffered(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.tensor([True, False, True, True]))
        self.ends = torch.tensor([0.0, 1.0])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert self.ends[1] > self.ends[0]
        assert torch.equal(self.ends, torch.linspace(0, 1, 2))
        return x[:, :4][:, self.mask]


def rows(x: torch.Tensor) -> torch.Tensor:
    return x[: int(GIVEN.max()) + 1]


def repeated(x: torch.Tensor) -> torch.Tensor:
    ends = torch.repeat_interleave(torch.tensor([1, 2]), torch.tensor([2, 3])).cumsum(0)
    return x.new_zeros(ends[-1].item(), ends.numel())


def written(x: torch.Tensor) -> torch.Tensor:
    sizes = torch.zeros(2, dtype=torch.int64)
    sizes[0] = 4
    sizes[1:].add_(2)
    return x.new_zeros(*sizes.tolist())


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (Buffered(), (7, 3)),  # three of four elements of the mask are true
        (rows, (3 + 1, 8)),
        (repeated, (1 + 1 + 2 + 2 + 2, 2 + 3)),
        (written, (4, 2)),
    ],
)
def test_what_follows_from_constants_is_known(model: object, shape: tuple[int, ...]) -> None:
    graph = rk.trace(model, X, strict=True).at(n=7)
    assert graph.outputs[0].shape == shape
    assert graph.assumptions == ()
    assert GIVEN.tolist() == [3, 1, 2]


def test_what_unknown_numbers_were_written_in_is_unknown() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        sizes = torch.zeros(2)
        view = sizes[1:]
        sizes.copy_(x[0, :2])
        return x if view[0] > 0 else -x

    with pytest.raises(TraceError, match=r"a number of a tensor is asked for .* such as assume=\{'gt': False\}"):
        rk.trace(model, X)


def test_a_tensor_that_is_given_itself_has_its_numbers() -> None:
    def crops(x: torch.Tensor, sizes: torch.Tensor) -> list[torch.Tensor]:
        return [x[:height, :width] for height, width in sizes.tolist()]

    graph = rk.trace(crops, rk.Input("n", 8), torch.tensor([[2, 3], [4, 5]]))
    assert [spec.shape for spec in graph.outputs] == [(2, 3), (4, 5)]
    with pytest.raises(TraceError, match="or give the tensor that it comes from itself instead of its sizes"):
        rk.trace(lambda x, sizes: x if sizes.sum() > 3 else -x, X, rk.Input(2, 2, dtype="int64"))


def test_chance_mostly_comes_out_one_way() -> None:
    graph = rk.trace(lambda x: x if torch.rand([]) < 0.1 else x.exp(), X, mode="forward")
    assert [str(found.value) for found in graph.assumptions] == ["False"]
    assert "aten.exp" in {op.kind for op in graph.ops}


def test_a_loss_of_many_numbers_is_told_what_to_do() -> None:
    with pytest.raises(InputError, match=r"the loss must return one number; got \(4, 8\): take its mean"):
        rk.trace(nn.Linear(8, 8), rk.Input(4, 8), mode="training", loss=torch.square)


class Positions(nn.Module):
    """Positions 2, 3, 4 … looked up in a table of 18, written as models write them."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.table = how, nn.Embedding(18, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.how == "arange":
            places = torch.arange(0, x.shape[1]).unsqueeze(0).expand(x.shape[0], -1)
        else:
            places = torch.cumsum(torch.ones(x.shape[:2], dtype=torch.long), 1) - 1
        return self.table(places + 2)


@pytest.mark.parametrize("how", ["arange", "cumsum"])
def test_positions_beyond_their_table_are_refused(how: str) -> None:
    assert rk.trace(Positions(how), rk.Input(3, 16)).ops
    with pytest.raises(TraceError, match=r"in module 'table' .*IndexError: index 18 of a table with 18 rows"):
        rk.trace(Positions(how), rk.Input(3, 17))


def test_a_table_of_positions_bounds_an_open_length() -> None:
    graph = rk.trace(Positions("arange"), rk.Input("batch", "seq"))
    assert graph.at(batch=3, seq=16).ops
    with pytest.raises(SizeError, match=r"valid only for seq \+ 2 <= 18 "):
        graph.at(batch=3, seq=17)


def decoded(tokens: torch.Tensor) -> torch.Tensor:
    """Tokens until all sequences have ended, or are so long: as libraries generate text."""
    unfinished = tokens.new_ones(tokens.shape[0])
    while unfinished.max() != 0:
        tokens = torch.cat((tokens, tokens[:, -1:] + 1), dim=1)
        longest = torch.full((tokens.shape[0],), tokens.shape[1] >= 8)
        unfinished = unfinished & ~(longest | (tokens[:, -1] == 7))
    return tokens


def test_a_loop_ends_where_it_ends_whatever_the_data_are() -> None:
    graph = rk.trace(decoded, rk.Input(2, 5, dtype="int64"), assume={"ne": True})
    assert [one.shape for one in graph.outputs] == [(2, 8)]
    assert [one.times for one in graph.assumptions] == [3]  # before each of the three tokens; the last is known


def test_a_loop_that_an_open_size_does_not_end_is_traced_with_numbers() -> None:
    graph = rk.trace(decoded, rk.Input("n", 5, dtype="int64"), assume={"ne": True})
    assert [(one.name, "a loop goes on" in one.reason) for one in graph.forced] == [("n", True)]
    assert [one.shape[1] for one in graph.outputs] == [8]


def test_a_mask_that_is_known_in_part_is_not_known() -> None:
    def kept(x: torch.Tensor) -> torch.Tensor:
        return x[(x[:, 0] > 0) | torch.tensor([True, False])]

    assert [one.name for one in rk.trace(kept, rk.Input(2, 8)).assumptions] == ["mask"]
