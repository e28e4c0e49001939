"""Draws the pictures of figures.md with the commands that stand beside them, and writes that part of the page."""

from __future__ import annotations

import shlex
import subprocess
import sys

import page

_RESNET = "timm:resnet50 --input batch,3,224,224"
#: Name of the picture, what it shows, and the command without its --out.
PICTURES = (
    ("roofline", "Kernels under their roofs", f"{_RESNET} --batch 32 --gpu nvidia-a100-sxm4-80gb"),
    (
        "hero",
        "The same across a page",
        f"{_RESNET} --batch 32 --gpu nvidia-a100-sxm4-80gb --width page",
    ),
    (
        "path",
        "A step on its way over batch sizes, on two GPUs",
        f"{_RESNET} --batch 32 --over batch=1,8,64,256 --gpu nvidia-a100-sxm4-80gb --gpu nvidia-l4",
    ),
    (
        "networks",
        "Several networks, a mark each",
        "timm:resnet18 --with timm:resnet50 --with timm:mobilenetv3_large_100 --with timm:convnext_tiny "
        "--input batch,3,224,224 --batch 32 --gpu nvidia-l4",
    ),
    (
        "three",
        "Three GPUs in a column",
        f"{_RESNET} --batch 32 --gpu nvidia-a100-sxm4-80gb --gpu nvidia-l4 --gpu nvidia-t4 --venue ieee",
    ),
    (
        "levels",
        "Traffic of DRAM and of the L2, and what starting kernels costs",
        f"{_RESNET} --batch 4 --gpu nvidia-a100-sxm4-80gb --by-level --launch",
    ),
    (
        "shares",
        "Three GPUs in shares of their own roofs",
        f"{_RESNET} --batch 32 --gpu nvidia-a100-sxm4-80gb --gpu nvidia-l4 --gpu nvidia-t4 --normalized",
    ),
    (
        "timeline",
        "The two queues of a training step",
        f"{_RESNET} --batch 8 --gpu nvidia-a100-sxm4-80gb --mode training --optimizer sgd --what timeline",
    ),
    (
        "memory",
        "Memory over a training step",
        f"{_RESNET} --batch 192 --gpu nvidia-l4 --mode training --optimizer adamw --what memory",
    ),
    (
        "sweep",
        "Time and throughput over the batch",
        f"{_RESNET} --batch 1 --over batch=1,2,4,8,16,32,64,128 --gpu nvidia-a100-sxm4-80gb --what sweep",
    ),
)
_SEVERAL = f"{_RESNET} --batch 256 --mode training --optimizer sgd --cluster dgx-a100"
PICTURES += (
    (
        "links",
        "Steps on several GPUs under the roof of their links",
        f"{_SEVERAL} --strategy ddp --strategy fsdp --strategy dp --gpus 2 --gpus 8 --width page",
    ),
    ("stages", "The stages of a pipeline", f"{_SEVERAL} --gpus 4 --strategy pipeline --what timeline"),
    ("waterfall", "From one GPU to eight", f"{_SEVERAL} --strategy dp --what waterfall --width page"),
)


def file_of(name: str) -> str:
    """The picture's file: hundreds of hatched bars are smaller as pixels."""
    return f"{name}.png" if name == "timeline" else f"{name}.svg"


def draw() -> None:
    """Runs every command."""
    (page.FOLDER / "figures").mkdir(exist_ok=True)
    for name, _, options in PICTURES:
        command = [sys.executable, "-m", "rooflinekit", "plot", *shlex.split(options), "--out", file_of(name)]
        subprocess.run(command, check=True, cwd=page.FOLDER / "figures")  # the file holds its command, so a name alone


def made() -> str:
    """The part of the page: a heading, the command and the picture of each."""
    parts: list[str] = []
    for name, title, options in PICTURES:
        if not (page.FOLDER / "figures" / file_of(name)).is_file():
            sys.exit(f"docs/figures/{file_of(name)} is missing: run python docs/make_figures.py")
        parts.append(
            f"### {title}\n\n```sh\nrooflinekit plot {options} --out {file_of(name)}\n```\n\n![{title}](figures/{file_of(name)})"
        )
    return "\n\n".join(parts)


if __name__ == "__main__":
    if "--check" not in sys.argv:
        draw()
    page.run("figures.md", "pictures", made, __file__)
