"""The CPU side: what it costs a host to issue work to a GPU, to copy to it, and to wait for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Self

from pydantic import Field, model_validator

from rooflinekit.hardware.device import SCHEMA_VERSION, Bandwidth, Identifier
from rooflinekit.hardware.fields import Choice, Frozen, FrozenMapping, Quantity, Record, Text

# Families of ops whose issue costs the CPU differently; an op of another kind costs "default".
FAMILIES = ("default", "convolution", "matmul", "attention", "normalization", "reduction", "optimizer", "view")

#: What the CPU does in seconds, beside `dispatch`.
CPU_TIMES = (
    "module", "launch", "step", "record", "compiled_launch", "guards", "guard", "graph_launch", "graph_entry",
)  # fmt: skip
HOST_SOURCE_GROUPS = (
    *("dispatch", "module", "backward_factor", "launch", "launch_latency", "sync", "step", "record"),
    *("compiled_launch", "compiled_call", "guards", "guard", "graph_launch", "graph_entry", "spread", "copies"),
)

Time = Annotated[float, Quantity("s", zero=True, high=10.0)]


class Host(Record):
    """A CPU, its memory and the software on it, as far as a GPU's user feels them. Times are in seconds."""

    schema_version: Annotated[int, Field(alias="schema", ge=SCHEMA_VERSION, le=SCHEMA_VERSION)] = SCHEMA_VERSION
    name: Identifier
    description: Text

    # CPU time from one eager op called in Python to the next, its first kernel launch included.
    dispatch: Annotated[Mapping[Annotated[str, Choice(FAMILIES)], Time], Frozen()]
    module: Time = 0.0  # CPU time of calling a module from Python, beside the ops in it; 0: it is in their times
    # The same for an op that autograd's C++ engine issues, relative to the call from Python.
    backward_factor: Annotated[float, Field(gt=0, le=100, allow_inf_nan=False)]
    launch: Time  # CPU time of each further kernel that one op launches
    launch_latency: Time  # from the launch call to the first instruction, on an idle GPU
    sync: Time  # CPU time of one synchronisation, beyond waiting for the GPU
    step: Time  # fixed CPU cost of one step: the loop around the model
    record: Time = 4e-6  # recording one CUDA event; what is timed between two has the second one's in it

    # Of compiled steps and CUDA graphs, in CPU time.
    compiled_launch: Time = 9e-6  # one Triton kernel's launch by inductor's Python wrapper, its result's memory too
    # A library's call from that wrapper, relative to the op called from Python.
    compiled_call: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.7
    guards: Time = 22e-6  # before a compiled step starts: from Python through dynamo into the wrapper
    guard: Time = 2.2e-6  # and for each of its weights, buffers and inputs: guarded, handed over, checked
    graph_launch: Time = 10e-6  # launching a CUDA graph, whatever it holds, beside one `launch`
    graph_entry: Time = 15e-6  # and before it where torch.compile manages the graph: which one, and its inputs' places

    # By how much the times of a host of this sort lie above or below these: standard deviation of their logarithm.
    spread: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.3

    stands_for_any: bool = False  # whether it is what is taken where nobody names a host

    dram_bandwidth: Bandwidth
    copy_bandwidth_pageable: Bandwidth  # host to device, ordinary memory
    copy_bandwidth_pinned: Bandwidth  # host to device, page-locked memory

    sources: Annotated[Mapping[Annotated[str, Choice(HOST_SOURCE_GROUPS)], Text], Frozen()] = FrozenMapping()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if "default" not in self.dispatch:
            raise ValueError("dispatch: expected a time for 'default', which unlisted families fall back to")
        return self

    def scaled(self, times: float, name: str) -> Self:
        """A host of another name on which everything that the CPU does takes so many times as long."""
        dispatch = {family: _rounded(times * seconds) for family, seconds in self.dispatch.items()}
        changed = {part: _rounded(times * getattr(self, part)) for part in CPU_TIMES}
        return self.model_copy(update={"name": name, "dispatch": dispatch, **changed})

    def dispatch_s(self, family: str) -> float:
        """CPU seconds of one eager forward op of `family`; families that are not listed cost the default."""
        return self.dispatch.get(family, self.dispatch["default"])


def _rounded(seconds: float) -> float:
    """Seconds to three digits: no time of a host is known to more."""
    return float(f"{seconds:.3g}")
