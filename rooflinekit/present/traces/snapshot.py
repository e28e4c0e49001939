"""The blocks of a predicted step as a snapshot that PyTorch's memory viewer opens (pytorch.org/memory_viz)."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rooflinekit.errors import InputError
from rooflinekit.files import check_ending, write_bytes
from rooflinekit.ir.arguments import checked
from rooflinekit.ir.op import Op
from rooflinekit.ir.tables import paths_to
from rooflinekit.step.allocator import Allocator, Block
from rooflinekit.step.memory import account_of
from rooflinekit.step.memory_course import memory_course
from rooflinekit.step.prediction import Prediction

_BASE = 0x7F00_0000_0000  # where the first segment is shown, as high as CUDA's are
_POOL = (0, 0)  # the one of tensors, not of a CUDA graph
_Entry = dict[str, Any]


@checked
def save_snapshot(prediction: Prediction, path: str | Path) -> Path:
    """Writes what the step asks PyTorch's caching allocator for, and the segments that are left, in bytes.

    The file is what `torch.cuda.memory._dump_snapshot` writes: every block with the op, its modules and what it holds
    instead of a stack; weights, inputs and states first. Blocks are shown when the GPU begins their op. A step
    that does not fit is shown as on a GPU with room for it. Returns the path.
    Raises InputError for a device that is no GPU, OutputError for a name that does not end in .pickle and for a place
    that cannot be written.
    """
    target = check_ending(path, ".pickle")
    device = prediction.machine.device
    if device.kind != "gpu":
        raise InputError(f"{device.name}: has no caching allocator to show; expected a GPU")
    # Protocol 4 is what torch.cuda.memory writes, and what the viewer's own reader knows.
    write_bytes(pickle.dumps(_snapshot(prediction), protocol=4), target)
    return target


def _snapshot(p: Prediction) -> _Entry:
    blocks = p.blocks
    record = _Record()
    for spec, size in zip(blocks.standing, blocks.fixed, strict=False):
        record.take(spec.memory, size, _stack(account_of(spec), spec.name))
    record.take("products", blocks.fixed[-1], _stack("workspace", "matrix products"))
    for issue, moment, (begin, end, temporary) in zip(p.issues, memory_course(p), blocks.events(), strict=False):
        record.now_us = round(moment.start_s * 1e6)
        for life in begin:
            record.take(life, life.size, _stack(life.account, issue.op))
        record.take("temporary", temporary, _stack("workspace", issue.op))
        record.give_back("temporary")
        for life in end:
            record.give_back(life)
    return {"segments": record.left(), "device_traces": [record.entries], "allocator_settings": {}}


def _stack(account: str, what: Op | str) -> list[_Entry]:
    """Innermost first, as the viewer has it: the op, the modules around it, what the block holds."""
    if isinstance(what, str):
        return [_frame(what, ""), _frame(account, "")]
    _, *around = paths_to(what.module)
    return [
        _frame(f"{what.kind} ({what.phase})", what.name),
        *(_frame(m, "module") for m in reversed(around)),
        _frame(account, ""),
    ]


def _frame(name: str, file: str) -> _Entry:
    return {"name": name, "filename": file, "line": 0}


class _Record:
    """An allocator, and what it does in the viewer's words."""

    def __init__(self) -> None:
        self.entries: list[_Entry] = []
        self.now_us = 0
        self._allocator = Allocator()
        self._segments: list[tuple[Block, int, int]] = []  # a block, with address and bytes of the segment
        self._taken: dict[object, tuple[Block, int, list[_Entry]]] = {}

    def take(self, key: object, size: int, frames: list[_Entry]) -> None:
        """A block for so many bytes; nothing for none."""
        before = self._allocator.reserved
        block = self._allocator.take(size)
        if block is None:
            return
        if new := self._allocator.reserved - before:
            self._segments.append((block, block.address, new))
            self._note("segment_alloc", block.address, new, frames)
        self._taken[key] = block, size, frames
        self._note("alloc", block.address, size, frames)

    def give_back(self, key: object) -> None:
        """Frees the block that was taken by this key, if there is one."""
        if key not in self._taken:
            return
        block, size, frames = self._taken.pop(key)
        for action in ("free_requested", "free_completed"):
            self._note(action, block.address, size, frames)
        self._allocator.give_back(block)

    def left(self) -> list[_Entry]:
        """The segments at the end, with the blocks in use and the gaps between them."""
        used = sorted(self._taken.values(), key=lambda taken: taken[0].address)
        return [
            _segment(address, total, first.small, [t for t in used if address <= t[0].address < address + total])
            for first, address, total in self._segments
        ]

    def _note(self, action: str, address: int, size: int, frames: list[_Entry]) -> None:
        place = {"addr": _BASE + address, "size": size, "stream": 0, "pool_id": _POOL}
        self.entries.append({"action": action, **place, "time_us": self.now_us, "frames": frames})


def _segment(address: int, total: int, small: bool, used: Iterable[tuple[Block, int, list[_Entry]]]) -> _Entry:
    blocks: list[_Entry] = []
    end = address
    for block, size, frames in used:
        if block.address > end:
            blocks.append(_block(end, block.address - end))
        blocks.append(_block(block.address, block.size, size, frames))
        end = block.address + block.size
    if end < address + total:
        blocks.append(_block(end, address + total - end))
    active = sum(block["size"] for block in blocks if block["state"] == "active_allocated")
    return {
        "device": 0, "address": _BASE + address, "total_size": total, "stream": 0, "segment_pool_id": _POOL,
        "segment_type": "small" if small else "large", "is_expandable": False, "allocated_size": active,
        "active_size": active, "requested_size": sum(block["requested_size"] for block in blocks), "frames": [],
        "blocks": blocks,
    }  # fmt: skip


def _block(address: int, size: int, requested: int = 0, frames: Iterable[Mapping[str, Any]] = ()) -> _Entry:
    state = "active_allocated" if requested else "inactive"
    place = {"address": _BASE + address, "size": size, "requested_size": requested}
    return {**place, "state": state, "frames": list(frames)}
