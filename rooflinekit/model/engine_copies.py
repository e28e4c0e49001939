"""Copies from one device to another by their copy engines, without kernels: `tensor.to`, not a collective.

Engines keep a link busy, so the time is that of the packets. Without peer access the driver goes through the host's
memory in pieces, one on its way up while the one before is on its way down: a link carries both directions at once, so
that takes as long, but for the first piece, which is left out (tens of microseconds).
"""

from __future__ import annotations

import math

from rooflinekit.model.collectives import CollectiveTiming, LinkConstants
from rooflinekit.model.links import PAYLOAD_SHARE, THROUGH_HOST, Route


def time_copy(
    size_bytes: float, route: Route, constants: LinkConstants, host_rate: float = math.inf
) -> CollectiveTiming:
    """The time of one copy between the two devices of a route.

    host_rate: byte/s between a device and the host's page-locked memory, for copies that go through it.
    """
    link = route.links[-1]
    if link.technology.startswith("pcie"):
        rate = min(link.bandwidth * PAYLOAD_SHARE, link.most)
        if link.technology in THROUGH_HOST:
            rate = min(rate, host_rate)
    else:
        rate = constants.rate(link)
    spread = constants.spread(link)
    return CollectiveTiming(
        collective="send-recv", algorithm="copy", size_bytes=size_bytes, ranks=route.ranks, route=route,
        start_s=max(constants.device("start", device) for device in route.devices),
        transfer_s=size_bytes / rate, wire_bytes=size_bytes, spread=math.hypot(spread.kernel, spread.shared),
    )  # fmt: skip
