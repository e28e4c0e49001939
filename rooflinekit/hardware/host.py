"""The CPU side: what it costs a host to issue work to a GPU, to copy to it, and to wait for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Self

from pydantic import Field, model_validator

from rooflinekit.hardware.device import SCHEMA_VERSION, Bandwidth, Identifier
from rooflinekit.hardware.fields import Choice, Frozen, FrozenMapping, Quantity, Record, Text

# Families of ops whose issue costs the CPU differently; an op of another kind costs "default".
FAMILIES = ("default", "convolution", "matmul", "attention", "normalization", "optimizer", "view")

HOST_SOURCE_GROUPS = (
    *("dispatch", "backward_factor", "launch", "launch_latency", "sync", "step"),
    *("compiled_launch", "guards", "graph_launch", "copies"),
)

Time = Annotated[float, Quantity("s", zero=True)]


class Host(Record):
    """A CPU, its memory and the software on it, as far as a GPU's user feels them. Times are in seconds."""

    schema_version: Annotated[int, Field(alias="schema", ge=SCHEMA_VERSION, le=SCHEMA_VERSION)] = SCHEMA_VERSION
    name: Identifier
    description: Text

    # CPU time from one eager op called in Python to the next, its first kernel launch included.
    dispatch: Annotated[Mapping[Annotated[str, Choice(FAMILIES)], Time], Frozen()]
    # The same for an op that autograd's C++ engine issues, relative to the call from Python.
    backward_factor: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    launch: Time  # CPU time of each further kernel that one op launches
    launch_latency: Time  # from the launch call to the first instruction, on an idle GPU
    sync: Time  # CPU time of one synchronisation, beyond waiting for the GPU
    step: Time  # fixed CPU cost of one step: the loop around the model

    # Of compiled steps and CUDA graphs, in CPU time. Stated defaults, the same for all hosts, not measured.
    compiled_launch: Time = 5e-6  # one Triton kernel's launch by inductor's Python wrapper
    guards: Time = 30e-6  # before a compiled step starts: dynamo's guards, the wrapper's checks of its inputs
    graph_launch: Time = 10e-6  # launching a CUDA graph, whatever it holds, beside one `launch`

    dram_bandwidth: Bandwidth
    copy_bandwidth_pageable: Bandwidth  # host to device, ordinary memory
    copy_bandwidth_pinned: Bandwidth  # host to device, page-locked memory

    sources: Annotated[Mapping[Annotated[str, Choice(HOST_SOURCE_GROUPS)], Text], Frozen()] = FrozenMapping()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if "default" not in self.dispatch:
            raise ValueError("dispatch: expected a time for 'default', which unlisted families fall back to")
        return self

    def dispatch_s(self, family: str) -> float:
        """CPU seconds of one eager forward op of `family`; families that are not listed cost the default."""
        return self.dispatch.get(family, self.dispatch["default"])
