"""`torch.cuda` as far as timers use it, on a clock that calls move."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any


class Gpu:
    """A GPU and its CPU on one clock: calls are issued in 4 µs and run 20 µs; waiting takes 7 µs more.

    A graph is launched in 9 µs and runs 2 µs a kernel; `capturable`: whether there can be one.
    """

    Stream = object

    def __init__(self, *, capturable: bool = True) -> None:
        self.now = 0.0
        self.ends = 0.0  # when the GPU is done
        self.capturable = capturable
        self.capturing: SimpleNamespace | None = None
        self.emptied = 0  # how often its cache was
        self.current = [0]  # the GPUs that were chosen, the last one now

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def call(self) -> None:
        if self.capturing is not None:
            self.capturing.calls += 1
            return
        self.now += 4e-6
        self.ends = max(self.now, self.ends) + 20e-6

    def synchronize(self) -> None:
        self.now = max(self.now, self.ends) + 7e-6

    def CUDAGraph(self) -> Any:
        graph = SimpleNamespace(calls=0)

        def replay() -> None:
            self.now += 9e-6
            self.ends = max(self.now, self.ends) + 2e-6 * graph.calls

        graph.replay = replay
        return graph

    @contextmanager
    def graph(self, graph: Any) -> Iterator[None]:
        if not self.capturable:
            raise RuntimeError("operation not permitted when stream is capturing")
        self.capturing = graph
        yield
        self.capturing = None

    def Event(self, *, enable_timing: bool) -> Any:
        assert enable_timing
        event = SimpleNamespace(at=None, synchronize=self.synchronize)
        event.record = lambda: setattr(event, "at", max(self.now, self.ends))
        event.elapsed_time = lambda end: (end.at - event.at) * 1e3
        return event

    @contextmanager
    def device(self, index: int) -> Iterator[None]:
        self.current.append(index)
        yield
        self.current.pop()

    def stream(self, side: object) -> Any:
        return nullcontext()

    def empty_cache(self) -> None:
        self.emptied += 1

    def get_device_properties(self, index: int) -> Any:
        return SimpleNamespace(name="NVIDIA H200", pci_domain_id=0, pci_bus_id=0x1B, pci_device_id=0)

    def device_count(self) -> int:
        return 1
