"""Memory savers as Python: run for real, they need what was predicted and give the same gradients."""

import copy
from typing import Any

import pytest
import torch
from alive import real_peak
from torch import nn

import rooflinekit as rk
from rooflinekit.api.parallel import _alone
from rooflinekit.distributed.fitting import pasted
from rooflinekit.distributed.planning import plan
from rooflinekit.errors import InputError

CPU = "generic-cloud-cpu-avx2"
SHAPE = (256, 64)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.two(torch.tanh(self.one(x)))


def squares(y: torch.Tensor) -> torch.Tensor:
    return y.square().mean()


def predicted(model: nn.Module, gpu: str = CPU, autocast: str | None = None, **savers: Any) -> Any:
    graph = rk.trace(model, rk.Input("batch", 64), mode="training", loss=squares, autocast=autocast)
    return plan(graph.at(batch=SHAPE[0]), _alone(gpu, None, "eager"), rk.DDP(), savers=rk.Savers(**savers))


def run(text: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    exec(compile(text, "policy.py", "exec"), found)
    return found


@pytest.mark.parametrize(
    "savers",
    [
        {"checkpoint": True},
        {"checkpoint": ("1", "2")},
        {"checkpoint": True, "save": ("one:aten.addmm",)},
        {"checkpoint": True, "save": (":aten.add", "two:aten.addmm")},
    ],
    ids=["all", "two", "one product", "a product and a sum"],
)
def test_checkpoints_need_what_is_predicted(savers: dict[str, Any]) -> None:
    model = nn.Sequential(*(Block() for _ in range(4)))
    p = predicted(model, **savers)
    changed = copy.deepcopy(model)
    run(pasted(p))["checkpoint_blocks"](changed)
    x = torch.rand(SHAPE)
    real = real_peak(changed, [x], squares)
    assert p.shares[0].memory.peak_bytes == real
    assert real <= real_peak(model, [x], squares)
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(model.parameters(), changed.parameters(), strict=True))


def test_parts_of_the_batch_and_autocast() -> None:
    model = Block()
    text = pasted(predicted(model, accumulate=4))
    before = [weight.detach().clone() for weight in model.parameters()]
    whole = copy.deepcopy(model)
    x = torch.rand(SHAPE)
    squares(whole(x)).backward()
    run(text)["train_step"](
        model, lambda net, part: squares(net(part)), torch.optim.SGD(model.parameters(), lr=1.0), [x]
    )
    for old, new, same in zip(before, model.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(old - new, same.grad)
    assert 'torch.autocast("cuda", torch.bfloat16)' in pasted(predicted(model, autocast="bf16"))


def test_what_no_call_can_wrap_is_refused() -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
    with pytest.raises(InputError, match="the block 0 and 1 is several modules"):
        pasted(predicted(model, checkpoint=True))
