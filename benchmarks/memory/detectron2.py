"""Peak memory of training detectors on a V100, against detectron2's list of models.

    python -m benchmarks.memory.detectron2 DATA [--most 3]

DATA/detectron2/zoo.csv: fp32, SGD, two images on each of eight GPUs under DistributedDataParallel; the peak that torch
allocates over the whole training, so that of two images of the largest size, 800 × 1333, which detectron2 pads to 1344.
What depends on the images is described by its sizes alone: torchvision's pyramid of features and heads on all anchors;
512 boxes an image, all of the finest level, and masks of a quarter of them. Frozen are, as there, all normalizations,
the stem and the first stage. The lists of anchors, proposals and labels are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

import rooflinekit as rk
from benchmarks.sources.command import asked
from benchmarks.sources.tables import read_table

GPU, _CLUSTER = "nvidia-v100-sxm2-16gb", "dgx-1-v100"
_IMAGES, _HEIGHT, _WIDTH, _BOXES, _CLASSES = 2, 800, 1344, 512, 81
_BODIES = {"R50": "resnet50", "R101": "resnet101", "X101": "resnext101_32x8d"}
#: Of the list's sections: the head.
_HEADS = {"RetinaNet:": "anchors", "Faster R-CNN:": "boxes", "COCO Instance": "masks", "RPN": "proposals"}


class _Pooled(torch.autograd.Function):
    """What RoIAlign takes and gives back."""

    @staticmethod
    def forward(ctx: Any, features: torch.Tensor, count: int, size: int) -> torch.Tensor:
        ctx.shape = features.shape
        return features.new_zeros(count, features.shape[1], size, size)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return gradient.new_zeros(ctx.shape), None, None


class Detector(nn.Module):
    """A pyramid of features with one of the heads, and the sum of the losses."""

    def __init__(self, body: str, head: str) -> None:
        super().__init__()
        from torchvision.models import detection

        self.head = head
        if head == "anchors":
            net = detection.retinanet_resnet50_fpn(weights=None, weights_backbone=None, num_classes=_CLASSES - 1)
            self.backbone, self.on_anchors = net.backbone, net.head
        else:
            make = partial(detection.backbone_utils.resnet_fpn_backbone, weights=None, trainable_layers=3)
            net = detection.MaskRCNN(make(backbone_name=body), _CLASSES)
            self.backbone, self.rpn, self.roi = net.backbone, net.rpn.head, net.roi_heads
        for name, weight in self.backbone.body.named_parameters():
            weight.requires_grad_(name.startswith(("layer2", "layer3", "layer4")))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Of all images together."""
        from torchvision.ops import sigmoid_focal_loss

        count = images.shape[0]
        features = self.backbone(images)
        if self.head == "anchors":
            found = self.on_anchors(list(features.values()))
            logits = found["cls_logits"]
            focal = sigmoid_focal_loss(logits, torch.zeros_like(logits), reduction="sum")
            return focal + found["bbox_regression"].abs().sum()
        loss = sum(part.abs().sum() for level in self.rpn(list(features.values())) for part in level)
        if self.head == "proposals":
            return loss
        finest = features["0"]
        pooled = _Pooled.apply(finest, count * _BOXES, 7)
        scores, places = self.roi.box_predictor(self.roi.box_head(pooled))
        labels = images.new_zeros(count * _BOXES, dtype=torch.int64)
        loss = loss + nn.functional.cross_entropy(scores, labels) + places.abs().sum()
        if self.head == "masks":
            pooled = _Pooled.apply(finest, count * _BOXES // 4, 14)
            loss = loss + nn.functional.softplus(self.roi.mask_predictor(self.roi.mask_head(pooled))).sum()
        return loss


def traced(body: str, head: str) -> rk.Graph:
    """A training step."""
    from rooflinekit.tracing.targets import declare_torchvision_operators

    declare_torchvision_operators()
    with torch.device("meta"):
        network = Detector(body, head)
    images = rk.Input("batch", 3, _HEIGHT, _WIDTH)
    sgd = partial(torch.optim.SGD, lr=0.01, momentum=0.9)
    return rk.trace(network, images, mode="training", loss=lambda y: y, optimizer=sgd, name=f"{body} {head}")


def judged(data: Path, most: int = 0) -> Iterator[dict[str, Any]]:
    """One record a network that can be described."""
    rows = read_table(data / "detectron2" / "zoo.csv")
    found: dict[tuple[str, str], float] = {}
    for row in rows[rows.train_memory_gb.notna() & rows.config.str.contains("/COCO-", na=False)].itertuples():
        named = f"{row.section} {row.name}" if row.section[0] != "R" else row.section
        head = next((head for words, head in _HEADS.items() if words in named), None)
        body = next((body for word, body in _BODIES.items() if word in row.name), None)
        if head and body and ("FPN" in row.name or head == "anchors"):
            found.setdefault((body, head), row.train_memory_gb)
    for (body, head), measured in list(found.items())[: most or None]:
        step = rk.parallel(traced(body, head), cluster=_CLUSTER, gpus=8, batch=8 * _IMAGES, strategy="ddp")
        use = step.fullest.memory
        told = use.peak_bytes / 1e9
        yield {"run": f"{body} {head}", "ratio": told / measured, "told GB": told, "measured GB": measured,
               "fits": use.fits}  # fmt: skip


def main() -> None:
    """Prints the table."""
    options = asked(__doc__, most={"type": int, "default": 0, "help": "networks that are traced; 0: all"})
    for row in judged(options.data, options.most):
        print({name: round(cell, 3) if isinstance(cell, float) else cell for name, cell in row.items()}, flush=True)


if __name__ == "__main__":
    main()
