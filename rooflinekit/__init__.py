"""How long one step of a PyTorch network takes on a GPU, why, and what would change it.

>>> import rooflinekit as rk
>>> rk.Input("batch", 3, 224, 224)
Input('batch', 3, 224, 224, dtype='float32')
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rooflinekit.api.collectives import collective_time as collective_time
    from rooflinekit.api.compare import advise as advise
    from rooflinekit.api.compare import compare_gpus as compare_gpus
    from rooflinekit.api.compare import transfer as transfer
    from rooflinekit.api.measure import measure_model as measure_model
    from rooflinekit.api.money import costs as costs
    from rooflinekit.api.pages import explore as explore
    from rooflinekit.api.pages import save_report as save_report
    from rooflinekit.api.parallel import fit_into as fit_into
    from rooflinekit.api.parallel import parallel as parallel
    from rooflinekit.api.parallel import search_layouts as search_layouts
    from rooflinekit.api.parallel import train as train
    from rooflinekit.api.predict import predict as predict
    from rooflinekit.api.predict import trace as trace
    from rooflinekit.api.serve import highest_rate as highest_rate
    from rooflinekit.api.serve import search_fleet as search_fleet
    from rooflinekit.api.serve import serve as serve
    from rooflinekit.api.serve import serve_traffic as serve_traffic
    from rooflinekit.api.sweep import search as search
    from rooflinekit.api.sweep import sweep as sweep
    from rooflinekit.cost.table import rule as rule
    from rooflinekit.cost.table import traffic as traffic
    from rooflinekit.decoder.decoder import Decoder as Decoder
    from rooflinekit.decoder.formats import Adapters as Adapters
    from rooflinekit.distributed.accounts import TrainingStep as TrainingStep
    from rooflinekit.distributed.described import LayoutSearch as LayoutSearch
    from rooflinekit.distributed.pieces import training_graph as training_graph
    from rooflinekit.distributed.prediction import ParallelPrediction as ParallelPrediction
    from rooflinekit.distributed.records import DDP as DDP
    from rooflinekit.distributed.records import FSDP as FSDP
    from rooflinekit.distributed.records import DataParallel as DataParallel
    from rooflinekit.distributed.records import Layout as Layout
    from rooflinekit.distributed.records import Mesh as Mesh
    from rooflinekit.distributed.records import Recipe as Recipe
    from rooflinekit.distributed.records import Savers as Savers
    from rooflinekit.hardware.catalog import devices as devices
    from rooflinekit.hardware.cluster import Cluster as Cluster
    from rooflinekit.hardware.device import Device as Device
    from rooflinekit.hardware.host import Host as Host
    from rooflinekit.hardware.prices import load_prices as load_prices
    from rooflinekit.hardware.specs import clusters as clusters
    from rooflinekit.hardware.specs import load_cluster as load_cluster
    from rooflinekit.hardware.specs import load_device as load_device
    from rooflinekit.hardware.specs import load_host as load_host
    from rooflinekit.ir.cost import Cost as Cost
    from rooflinekit.ir.cost import Gemm as Gemm
    from rooflinekit.ir.graph import Graph as Graph
    from rooflinekit.ir.inputs import Input as Input
    from rooflinekit.ir.op import Op as Op
    from rooflinekit.present.figures import plot as plot
    from rooflinekit.present.traces.chrome import save_trace as save_trace
    from rooflinekit.present.traces.snapshot import save_snapshot as save_snapshot
    from rooflinekit.serving.fleet import Capacity as Capacity
    from rooflinekit.serving.fleet import FleetSearch as FleetSearch
    from rooflinekit.serving.served import ServedTraffic as ServedTraffic
    from rooflinekit.serving.served import Serving as Serving
    from rooflinekit.serving.settings import Disaggregation as Disaggregation
    from rooflinekit.serving.settings import Engine as Engine
    from rooflinekit.serving.settings import Speculation as Speculation
    from rooflinekit.serving.traffic import Request as Request
    from rooflinekit.serving.traffic import ServiceLevel as ServiceLevel
    from rooflinekit.serving.traffic import Traffic as Traffic
    from rooflinekit.step.execution import Execution as Execution
    from rooflinekit.step.prediction import Prediction as Prediction
    from rooflinekit.step.summary import summary as summary
    from rooflinekit.study.compare.cost import Price as Price
    from rooflinekit.study.compare.cost import Pricing as Pricing
    from rooflinekit.study.compare.crossover import Intensity as Intensity
    from rooflinekit.study.compare.crossover import bandwidth_to_match as bandwidth_to_match
    from rooflinekit.study.compare.crossover import compute_bound_from as compute_bound_from
    from rooflinekit.study.compare.crossover import gpu_bound_from as gpu_bound_from
    from rooflinekit.study.compare.crossover import intensity as intensity
    from rooflinekit.study.compare.gpus import GpuComparison as GpuComparison
    from rooflinekit.study.compare.limits import power_limits as power_limits
    from rooflinekit.study.explain.advice import Advice as Advice
    from rooflinekit.study.explain.explanation import Explanation as Explanation
    from rooflinekit.study.explain.explanation import explain as explain
    from rooflinekit.study.profile.matching import Validation as Validation
    from rooflinekit.study.profile.memory import MemoryProfile as MemoryProfile
    from rooflinekit.study.profile.profile import Profile as Profile
    from rooflinekit.study.transfer.transferred import Transferred as Transferred

__version__ = "0.1.0"

# Loaded when first used (PEP 562): torch alone takes two seconds, and `rooflinekit devices` needs none of it.
_HOME = {
    name: home
    for home, names in {
        "api.collectives": "collective_time",
        "api.compare": "advise compare_gpus transfer",
        "api.measure": "measure_model",
        "api.money": "costs",
        "api.pages": "explore save_report",
        "api.parallel": "fit_into parallel search_layouts train",
        "api.predict": "predict trace",
        "api.serve": "highest_rate search_fleet serve serve_traffic",
        "api.sweep": "search sweep",
        "cost.table": "rule traffic",
        "hardware.catalog": "devices",
        "hardware.cluster": "Cluster",
        "hardware.device": "Device",
        "hardware.host": "Host",
        "hardware.prices": "load_prices",
        "hardware.specs": "clusters load_cluster load_device load_host",
        "ir.cost": "Cost Gemm",
        "ir.graph": "Graph",
        "ir.inputs": "Input",
        "ir.op": "Op",
        "present.figures": "plot",
        "present.traces.chrome": "save_trace",
        "present.traces.snapshot": "save_snapshot",
        "decoder.decoder": "Decoder",
        "serving.fleet": "Capacity FleetSearch",
        "decoder.formats": "Adapters",
        "serving.served": "ServedTraffic Serving",
        "serving.settings": "Disaggregation Engine Speculation",
        "serving.traffic": "Request ServiceLevel Traffic",
        "step.execution": "Execution",
        "step.prediction": "Prediction",
        "step.summary": "summary",
        "distributed.accounts": "TrainingStep",
        "distributed.described": "LayoutSearch",
        "distributed.pieces": "training_graph",
        "distributed.prediction": "ParallelPrediction",
        "distributed.records": "DDP DataParallel FSDP Layout Mesh Recipe Savers",
        "study.compare.cost": "Price Pricing",
        "study.compare.crossover": "Intensity bandwidth_to_match compute_bound_from gpu_bound_from intensity",
        "study.compare.gpus": "GpuComparison",
        "study.compare.limits": "power_limits",
        "study.explain.advice": "Advice",
        "study.explain.explanation": "Explanation explain",
        "study.profile.matching": "Validation",
        "study.profile.memory": "MemoryProfile",
        "study.profile.profile": "Profile",
        "study.transfer.transferred": "Transferred",
    }.items()
    for name in names.split()
}

_NAMES = sorted(_HOME, key=lambda name: (not name.isupper(), name))
if not TYPE_CHECKING:  # type checkers read the imports above
    __all__ = _NAMES


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        from rooflinekit.errors import nearest

        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{nearest(name, _NAMES)}")
    home = import_module(f"rooflinekit.{_HOME[name]}")
    return import_module(f"{home.__name__}.{name}") if name == "plot" else getattr(home, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_NAMES})
