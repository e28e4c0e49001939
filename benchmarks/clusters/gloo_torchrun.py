"""gloo's collectives between processes that torchrun starts, measured beside their prediction.

    torchrun --standalone --nproc-per-node 4 benchmarks/clusters/gloo_torchrun.py [--spec SPEC] [--sizes 4KiB,1MiB]
             [--rounds 20]

SPEC: the CPU's specification, by default a generic one with its vector units; as many cores are counted as this process
may use. Constants are the shipped ones, which are stated defaults: `benchmarks/operators/gloo.py` fits them. The
fastest round counts, for what else runs on the machine only adds. The process of rank 0 prints.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from rooflinekit.calibrate.fitting.files import load_links
from rooflinekit.calibrate.links.fitting import processes_of
from rooflinekit.hardware.specs import load_device
from rooflinekit.timing.collectives import route_of, time_collective
from rooflinekit.units import parse_quantity


def calls(size_bytes: int, ranks: int) -> dict[str, Callable[[], object]]:
    """One call of each collective, of as many bytes of result as nccl-tests counts."""
    whole = torch.zeros(size_bytes // 4)
    parts = list(torch.zeros(ranks * (size_bytes // 4 // ranks)).chunk(ranks))
    return {
        "all-reduce": lambda: dist.all_reduce(whole),
        "all-gather": lambda: dist.all_gather(parts, parts[dist.get_rank()].clone()),
        "broadcast": lambda: dist.broadcast(whole, 0),
    }


def fastest_s(call: Callable[[], object], rounds: int) -> float:
    """Seconds of the fastest call, all processes having met before each."""
    found = []
    for _ in range(rounds + 2):
        dist.barrier()
        start = time.perf_counter()
        call()
        found.append(time.perf_counter() - start)
    return min(found[2:])


def main() -> None:
    """Measures on every process, and prints on the first."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--spec", default=f"generic-cloud-cpu-{torch.backends.cpu.get_cpu_capability().lower()}")
    parser.add_argument("--sizes", default="1KiB,16KiB,256KiB,4MiB,64MiB")
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    ranks, first = dist.get_world_size(), dist.get_rank() == 0
    device = load_device(options.spec)
    device = device.replace(sm_count=min(device.sm_count, len(os.sched_getaffinity(0))))
    route = route_of(processes_of(device, ranks), (device,) * ranks)
    if first:
        print(f"{ranks} processes on {device.sm_count} cores\n")
        print("| collective | bytes | measured, ms | predicted, ms | 90 % interval, ms | ratio |")
        print("| --- | --- | --- | --- | --- | --- |")
    for size in (int(parse_quantity(word, "byte")) for word in options.sizes.split(",")):
        for name, call in calls(size, ranks).items():
            measured = fastest_s(call, options.rounds)
            found = time_collective(name, size, route, load_links())
            low, high = found.interval(0.9)
            if first:
                print(
                    f"| {name} | {size} | {measured * 1e3:.3f} | {found.total_s * 1e3:.3f} | {low * 1e3:.3f} to "
                    f"{high * 1e3:.3f} | {found.total_s / measured:.2f} |",
                    flush=True,
                )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
