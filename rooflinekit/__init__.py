"""How long one step of a PyTorch network takes on a GPU, why, and what would change it.

>>> import rooflinekit as rk
>>> rk.Input("batch", 3, 224, 224)
Input('batch', 3, 224, 224, dtype='float32')
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rooflinekit.api.advise import advise
    from rooflinekit.api.collectives import collective_time
    from rooflinekit.api.compare import compare_gpus
    from rooflinekit.api.explore import explore
    from rooflinekit.api.fleet import search_fleet
    from rooflinekit.api.measure import measure_model
    from rooflinekit.api.money import costs
    from rooflinekit.api.parallel import fit_into, parallel
    from rooflinekit.api.predict import predict, trace
    from rooflinekit.api.report import save_report
    from rooflinekit.api.serve import highest_rate, serve, serve_traffic
    from rooflinekit.api.sweep import search, sweep
    from rooflinekit.api.train import search_layouts, train
    from rooflinekit.api.transfer import transfer
    from rooflinekit.cost.table import rule, traffic
    from rooflinekit.hardware.catalog import devices
    from rooflinekit.hardware.cluster import Cluster
    from rooflinekit.hardware.device import Device
    from rooflinekit.hardware.host import Host
    from rooflinekit.hardware.prices import load_prices
    from rooflinekit.hardware.specs import clusters, load_cluster, load_device, load_host
    from rooflinekit.ir.cost import Cost, Gemm
    from rooflinekit.ir.graph import Graph
    from rooflinekit.ir.inputs import Input
    from rooflinekit.ir.op import Op
    from rooflinekit.present.figures import plot
    from rooflinekit.present.traces.chrome import save_trace
    from rooflinekit.present.traces.snapshot import save_snapshot
    from rooflinekit.serving.decoder import Decoder
    from rooflinekit.serving.engine_pool import Disaggregation
    from rooflinekit.serving.fleet import Capacity, FleetSearch
    from rooflinekit.serving.formats import Adapters
    from rooflinekit.serving.serve import Serving
    from rooflinekit.serving.served_traffic import ServedTraffic
    from rooflinekit.serving.settings import Engine, Speculation
    from rooflinekit.serving.traffic import Request, ServiceLevel, Traffic
    from rooflinekit.step.execution import Execution
    from rooflinekit.step.prediction import Prediction
    from rooflinekit.step.summary import summary
    from rooflinekit.strategies.prediction import ParallelPrediction
    from rooflinekit.strategies.records import DDP, FSDP, DataParallel, Mesh, Savers
    from rooflinekit.study.compare.cost import Price, Pricing
    from rooflinekit.study.compare.crossover import (
        Intensity,
        bandwidth_to_match,
        compute_bound_from,
        gpu_bound_from,
        intensity,
    )
    from rooflinekit.study.compare.gpus import GpuComparison
    from rooflinekit.study.compare.limits import power_limits
    from rooflinekit.study.explain.advice import Advice
    from rooflinekit.study.explain.explanation import Explanation, explain
    from rooflinekit.study.profile.matching import Validation
    from rooflinekit.study.profile.memory import MemoryProfile
    from rooflinekit.study.profile.profile import Profile
    from rooflinekit.study.transfer.transferred import Transferred
    from rooflinekit.training.graph import training_graph
    from rooflinekit.training.layout import Layout
    from rooflinekit.training.recipe import Recipe
    from rooflinekit.training.search import LayoutSearch
    from rooflinekit.training.step import TrainingStep

__version__ = "0.1.0"

# Loaded when first used (PEP 562): torch alone takes two seconds, and `rooflinekit devices` needs none of it.
_HOME = {
    "Adapters": "serving.formats",
    "Advice": "study.explain.advice",
    "Capacity": "serving.fleet",
    "Cluster": "hardware.cluster",
    "Cost": "ir.cost",
    "Decoder": "serving.decoder",
    "DDP": "strategies.records",
    "DataParallel": "strategies.records",
    "Device": "hardware.device",
    "Disaggregation": "serving.engine_pool",
    "Engine": "serving.settings",
    "Execution": "step.execution",
    "Explanation": "study.explain.explanation",
    "FSDP": "strategies.records",
    "FleetSearch": "serving.fleet",
    "Gemm": "ir.cost",
    "GpuComparison": "study.compare.gpus",
    "Graph": "ir.graph",
    "Host": "hardware.host",
    "Input": "ir.inputs",
    "Intensity": "study.compare.crossover",
    "Layout": "training.layout",
    "LayoutSearch": "training.search",
    "MemoryProfile": "study.profile.memory",
    "Mesh": "strategies.records",
    "Op": "ir.op",
    "ParallelPrediction": "strategies.prediction",
    "Prediction": "step.prediction",
    "Price": "study.compare.cost",
    "Pricing": "study.compare.cost",
    "Profile": "study.profile.profile",
    "Request": "serving.traffic",
    "ServedTraffic": "serving.served_traffic",
    "ServiceLevel": "serving.traffic",
    "Recipe": "training.recipe",
    "Serving": "serving.serve",
    "Traffic": "serving.traffic",
    "Savers": "strategies.records",
    "Speculation": "serving.settings",
    "TrainingStep": "training.step",
    "Transferred": "study.transfer.transferred",
    "Validation": "study.profile.matching",
    "advise": "api.advise",
    "bandwidth_to_match": "study.compare.crossover",
    "clusters": "hardware.specs",
    "collective_time": "api.collectives",
    "compare_gpus": "api.compare",
    "compute_bound_from": "study.compare.crossover",
    "costs": "api.money",
    "devices": "hardware.catalog",
    "explain": "study.explain.explanation",
    "explore": "api.explore",
    "fit_into": "api.parallel",
    "gpu_bound_from": "study.compare.crossover",
    "highest_rate": "api.serve",
    "intensity": "study.compare.crossover",
    "load_cluster": "hardware.specs",
    "load_device": "hardware.specs",
    "load_host": "hardware.specs",
    "load_prices": "hardware.prices",
    "measure_model": "api.measure",
    "parallel": "api.parallel",
    "plot": "present.figures",
    "power_limits": "study.compare.limits",
    "predict": "api.predict",
    "rule": "cost.table",
    "save_report": "api.report",
    "save_snapshot": "present.traces.snapshot",
    "save_trace": "present.traces.chrome",
    "search": "api.sweep",
    "search_fleet": "api.fleet",
    "search_layouts": "api.train",
    "serve": "api.serve",
    "serve_traffic": "api.serve",
    "summary": "step.summary",
    "sweep": "api.sweep",
    "trace": "api.predict",
    "train": "api.train",
    "training_graph": "training.graph",
    "transfer": "api.transfer",
    "traffic": "cost.table",
}

__all__ = [
    "DDP",
    "FSDP",
    "Adapters",
    "Advice",
    "Capacity",
    "Cluster",
    "Cost",
    "DataParallel",
    "Decoder",
    "Device",
    "Disaggregation",
    "Engine",
    "Execution",
    "Explanation",
    "FleetSearch",
    "Gemm",
    "GpuComparison",
    "Graph",
    "Host",
    "Input",
    "Intensity",
    "Layout",
    "LayoutSearch",
    "MemoryProfile",
    "Mesh",
    "Op",
    "ParallelPrediction",
    "Prediction",
    "Price",
    "Pricing",
    "Profile",
    "Recipe",
    "Request",
    "Savers",
    "ServedTraffic",
    "ServiceLevel",
    "Serving",
    "Speculation",
    "Traffic",
    "TrainingStep",
    "Transferred",
    "Validation",
    "advise",
    "bandwidth_to_match",
    "clusters",
    "collective_time",
    "compare_gpus",
    "compute_bound_from",
    "costs",
    "devices",
    "explain",
    "explore",
    "fit_into",
    "gpu_bound_from",
    "highest_rate",
    "intensity",
    "load_cluster",
    "load_device",
    "load_host",
    "load_prices",
    "measure_model",
    "parallel",
    "plot",
    "power_limits",
    "predict",
    "rule",
    "save_report",
    "save_snapshot",
    "save_trace",
    "search",
    "search_fleet",
    "search_layouts",
    "serve",
    "serve_traffic",
    "summary",
    "sweep",
    "trace",
    "traffic",
    "train",
    "training_graph",
    "transfer",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        from rooflinekit.errors import nearest

        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{nearest(name, __all__)}")
    home = import_module(f"rooflinekit.{_HOME[name]}")
    return import_module(f"{home.__name__}.{name}") if name == "plot" else getattr(home, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
