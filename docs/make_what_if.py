"""Writes what execution.md shows of `--compare`: a command and its output.

    python docs/make_what_if.py [--check]

With --check nothing is written, and the exit status is 1 where the page is behind.
"""

from __future__ import annotations

from page import printed, run

COMMAND = (
    "predict timm:resnet50 -i batch,3,224,224 --batch 16 --gpu nvidia-rtx-4090 --copy pinned --largest-batch "
    "--compare execution=eager,compiled --compare autocast=none,fp16 --compare channels-last=no,yes"
)


def what_if() -> str:
    """The command, and what it prints."""
    command = f"rooflinekit {COMMAND}"
    return "\n".join(["", "```console", f"$ {command}", printed(command), "```", ""])


if __name__ == "__main__":
    run("execution.md", "what if", what_if, __file__)
