"""How long one step of a PyTorch network takes on a GPU, why, and what would change it.

>>> import rooflinekit as rk
>>> rk.Input("batch", 3, 224, 224)
Input('batch', 3, 224, 224, dtype='float32')
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rooflinekit.api.advise import advise as advise
    from rooflinekit.api.collectives import collective_time as collective_time
    from rooflinekit.api.compare import compare_gpus as compare_gpus
    from rooflinekit.api.explore import explore as explore
    from rooflinekit.api.fleet import search_fleet as search_fleet
    from rooflinekit.api.measure import measure_model as measure_model
    from rooflinekit.api.money import costs as costs
    from rooflinekit.api.parallel import fit_into as fit_into
    from rooflinekit.api.parallel import parallel as parallel
    from rooflinekit.api.predict import predict as predict
    from rooflinekit.api.predict import trace as trace
    from rooflinekit.api.report import save_report as save_report
    from rooflinekit.api.serve import highest_rate as highest_rate
    from rooflinekit.api.serve import serve as serve
    from rooflinekit.api.serve import serve_traffic as serve_traffic
    from rooflinekit.api.sweep import search as search
    from rooflinekit.api.sweep import sweep as sweep
    from rooflinekit.api.train import search_layouts as search_layouts
    from rooflinekit.api.train import train as train
    from rooflinekit.api.transfer import transfer as transfer
    from rooflinekit.cost.table import rule as rule
    from rooflinekit.cost.table import traffic as traffic
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
    from rooflinekit.serving.decoder import Decoder as Decoder
    from rooflinekit.serving.engine_pool import Disaggregation as Disaggregation
    from rooflinekit.serving.fleet import Capacity as Capacity
    from rooflinekit.serving.fleet import FleetSearch as FleetSearch
    from rooflinekit.serving.formats import Adapters as Adapters
    from rooflinekit.serving.serve import Serving as Serving
    from rooflinekit.serving.served_traffic import ServedTraffic as ServedTraffic
    from rooflinekit.serving.settings import Engine as Engine
    from rooflinekit.serving.settings import Speculation as Speculation
    from rooflinekit.serving.traffic import Request as Request
    from rooflinekit.serving.traffic import ServiceLevel as ServiceLevel
    from rooflinekit.serving.traffic import Traffic as Traffic
    from rooflinekit.step.execution import Execution as Execution
    from rooflinekit.step.prediction import Prediction as Prediction
    from rooflinekit.step.summary import summary as summary
    from rooflinekit.strategies.prediction import ParallelPrediction as ParallelPrediction
    from rooflinekit.strategies.records import DDP as DDP
    from rooflinekit.strategies.records import FSDP as FSDP
    from rooflinekit.strategies.records import DataParallel as DataParallel
    from rooflinekit.strategies.records import Mesh as Mesh
    from rooflinekit.strategies.records import Savers as Savers
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
    from rooflinekit.training.graph import training_graph as training_graph
    from rooflinekit.training.layout import Layout as Layout
    from rooflinekit.training.recipe import Recipe as Recipe
    from rooflinekit.training.search import LayoutSearch as LayoutSearch
    from rooflinekit.training.step import TrainingStep as TrainingStep

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
