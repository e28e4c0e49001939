"""Specifications as YAML text."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import yaml

from rooflinekit.hardware.cluster import Cluster
from rooflinekit.hardware.device import Device
from rooflinekit.hardware.host import Host

_WIDTH = 118


def device_text(device: Device, heading: str) -> str:
    """The YAML of a device, which reads back as the same device; `heading` becomes a comment above it."""
    mapping = device.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_defaults=True)
    if device.launch_date is not None:
        mapping["launch_date"] = device.launch_date
    return mapping_text({"schema": device.schema_version, **mapping}, {}, heading)


def host_text(host: Host, heading: str) -> str:
    """The YAML of a host, which reads back as the same host; `heading` becomes a comment above it."""
    mapping = host.model_dump(mode="json", by_alias=True)
    return mapping_text({"schema": host.schema_version, **mapping}, {}, heading)


def cluster_text(cluster: Cluster, heading: str) -> str:
    """The YAML of a cluster, which reads back as the same cluster; `heading` becomes a comment above it."""
    mapping = cluster.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_defaults=True)
    return mapping_text({"schema": cluster.schema_version, **mapping}, {}, heading)


def mapping_of(text: str) -> dict[str, Any]:
    """What such a text says, its dates as text."""
    found: dict[str, Any] = json.loads(json.dumps(yaml.safe_load(text), default=str))
    return found


def mapping_text(mapping: Mapping[str, Any], comments: Mapping[str, str], heading: str) -> str:
    """The YAML of nested mappings, with a comment beside each dotted key of `comments`; None is an empty value."""
    return "\n".join([f"# {heading}", *_lines(mapping, comments, "")]) + "\n"


def _lines(mapping: Mapping[str, Any], comments: Mapping[str, str], prefix: str) -> list[str]:
    found: list[str] = []
    for key, value in mapping.items():
        path = f"{prefix}{key}"
        comment = f"  # {comments[path]}" if path in comments else ""
        if isinstance(value, Mapping):
            found.append(f"{key}:{comment}")
            found += [f"  {line}" for line in _lines(value, comments, f"{path}.")]
        elif value is None:
            found.append(f"{key}:{comment}")
        elif isinstance(value, list | tuple):
            flow = yaml.safe_dump(list(value), width=math.inf, allow_unicode=True, default_flow_style=True)
            found.append(f"{key}: {flow.strip()}{comment}")
        else:
            leaf = yaml.safe_dump({key: value}, width=_WIDTH, allow_unicode=True).splitlines()
            # A comment can stand behind a value of one line alone.
            found += [leaf[0] + comment] if len(leaf) == 1 else leaf
    return found
