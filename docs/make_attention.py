"""Writes the tables of execution.md, which kernel runs attention by GPU and release of PyTorch, and draws its figure.

    python docs/make_attention.py [--check]

With --check nothing is written, and the exit status is 1 where the page is behind.
"""

from __future__ import annotations

import subprocess
import sys
from itertools import groupby

from page import FOLDER, run

from rooflinekit.hardware.device import Device
from rooflinekit.hardware.specs import devices
from rooflinekit.ir.inputs import Release
from rooflinekit.ir.op import DType, Op, TensorSpec
from rooflinekit.kernels.attention_backends import backend_of

RELEASES = [*(Release(2, minor) for minor in range(5)), Release(2, 5, 0), Release(2, 5, 1)]
RELEASES += [Release(2, minor) for minor in range(6, 14)]
_FIGURE = "devices nvidia-h100-sxm5-80gb --attention attention.svg"
#: What is asked, and how such a call is traced: kind of op, format, and whether there is a mask.
CASES = {
    "fp16 without a mask": ("flash", DType.FLOAT16, False),
    "fp16 with a mask": ("efficient", DType.FLOAT16, True),
    "fp32": ("efficient", DType.FLOAT32, False),
}


def op(traced: str, dtype: DType, masked: bool) -> Op:
    """Attention of heads of 128 numbers."""
    q, k, v, bias = (TensorSpec(name=name, shape=(1, 16, 1024, 128), dtype=dtype) for name in ("q", "k", "v", "bias"))
    attrs = {"is_causal": False, "attn_bias": bias if masked else None}
    kind = f"aten._scaled_dot_product_{traced}_attention"
    return Op(name="a", kind=kind, inputs=(q, k, v, bias)[: 3 + masked], outputs=(q,), attrs=attrs)


def ran(device: Device, asked: Op) -> tuple[str, ...]:
    """What runs, by release."""
    return tuple(backend_of(asked, device, release).name for release in RELEASES)


def architectures() -> list[Device]:
    """A GPU for each architecture of which a kernel is known, NVIDIA's first, older ones first."""
    gpus = [device for device in devices() if backend_of(op(*CASES["fp32"]), device).name]
    found = {str(device.compute_capability): device for device in gpus}
    return [found[name] for name in sorted(found, key=lambda name: (name.startswith("gfx"), len(name), name))]


def named(alike: list[Device]) -> str:
    """Architectures with their compute capabilities."""
    found: dict[str, list[str]] = {}
    for device in alike:
        found.setdefault(device.architecture, []).append(str(device.compute_capability))
    return ", ".join(f"{name} ({', '.join(each)})" for name, each in found.items())


def table(case: str) -> list[str]:
    """Rows of architectures that run the same in all releases, columns of releases in which all run the same."""
    gpus = architectures()
    answers = [ran(device, op(*CASES[case])) for device in gpus]
    columns = [list(same) for _, same in groupby(range(len(RELEASES)), lambda i: [row[i] for row in answers])]
    heads = [" – ".join(dict.fromkeys(str(RELEASES[i]) for i in (one[0], one[-1]))) for one in columns]
    rows: dict[tuple[str, ...], list[Device]] = {}
    for device, row in zip(gpus, answers, strict=True):
        rows.setdefault(tuple(row[one[0]] for one in columns), []).append(device)
    lines = [f"| {case} | {' | '.join(heads)} |", "| --- |" + " --- |" * len(heads)]
    return ["", *lines, *(f"| {named(alike)} | {' | '.join(row)} |" for row, alike in rows.items())]


def tables() -> str:
    """All of them."""
    return "\n".join([line for case in CASES for line in table(case)] + [""])


if __name__ == "__main__":
    if "--check" not in sys.argv:  # the file holds its command, so a name alone
        command = [sys.executable, "-m", "rooflinekit", *_FIGURE.split()]
        subprocess.run(command, check=True, cwd=FOLDER / "figures")
    run("execution.md", "attention", tables, __file__)
