"""How long one step of a PyTorch network takes on a GPU, why, and what would change it.

>>> import rooflinekit as rk
>>> rk.Input("batch", 3, 224, 224)
Input('batch', 3, 224, 224, dtype='float32')
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rooflinekit.collective_workflows import collective_time
    from rooflinekit.cost.table import rule, traffic
    from rooflinekit.hardware.catalog import devices
    from rooflinekit.hardware.cluster import Cluster
    from rooflinekit.hardware.device import Device
    from rooflinekit.hardware.host import Host
    from rooflinekit.hardware.specs import clusters, load_cluster, load_device, load_host
    from rooflinekit.ir.cost import Cost, Gemm
    from rooflinekit.ir.graph import Graph
    from rooflinekit.ir.inputs import Input
    from rooflinekit.ir.op import Op
    from rooflinekit.measurement import measure_model
    from rooflinekit.parallel_workflows import fit_into, parallel
    from rooflinekit.present import plot
    from rooflinekit.present.chrome_trace import save_trace
    from rooflinekit.reporting import save_report
    from rooflinekit.serving.decoder import Decoder
    from rooflinekit.serving.serve import Serving
    from rooflinekit.serving.settings import Engine
    from rooflinekit.serving_workflows import serve
    from rooflinekit.step.execution import Execution
    from rooflinekit.step.prediction import Prediction
    from rooflinekit.strategies.prediction import ParallelPrediction
    from rooflinekit.strategies.records import DDP, FSDP, DataParallel, Mesh, Savers
    from rooflinekit.study.advice import Advice, advise
    from rooflinekit.study.crossover import bandwidth_to_match, compute_bound_from, gpu_bound_from
    from rooflinekit.study.explanation import Explanation, explain
    from rooflinekit.study.gpu_comparison import GpuComparison
    from rooflinekit.study.intensity import Intensity, intensity
    from rooflinekit.study.profile import Profile
    from rooflinekit.study.validation import Validation
    from rooflinekit.sweep_workflows import search, sweep
    from rooflinekit.workflows import compare_gpus, predict, trace

__version__ = "0.1.0"

# Loaded when first used (PEP 562): torch alone takes two seconds, and `rooflinekit devices` needs none of it.
_HOME = {
    "Advice": "study.advice",
    "Cluster": "hardware.cluster",
    "Cost": "ir.cost",
    "Decoder": "serving.decoder",
    "DDP": "strategies.records",
    "DataParallel": "strategies.records",
    "Device": "hardware.device",
    "Engine": "serving.settings",
    "Execution": "step.execution",
    "Explanation": "study.explanation",
    "FSDP": "strategies.records",
    "Gemm": "ir.cost",
    "GpuComparison": "study.gpu_comparison",
    "Graph": "ir.graph",
    "Host": "hardware.host",
    "Input": "ir.inputs",
    "Intensity": "study.intensity",
    "Mesh": "strategies.records",
    "Op": "ir.op",
    "ParallelPrediction": "strategies.prediction",
    "Prediction": "step.prediction",
    "Profile": "study.profile",
    "Serving": "serving.serve",
    "Savers": "strategies.records",
    "Validation": "study.validation",
    "advise": "study.advice",
    "bandwidth_to_match": "study.crossover",
    "clusters": "hardware.specs",
    "collective_time": "collective_workflows",
    "compare_gpus": "workflows",
    "compute_bound_from": "study.crossover",
    "devices": "hardware.catalog",
    "explain": "study.explanation",
    "fit_into": "parallel_workflows",
    "gpu_bound_from": "study.crossover",
    "intensity": "study.intensity",
    "load_cluster": "hardware.specs",
    "load_device": "hardware.specs",
    "load_host": "hardware.specs",
    "measure_model": "measurement",
    "parallel": "parallel_workflows",
    "plot": "present",
    "predict": "workflows",
    "rule": "cost.table",
    "save_report": "reporting",
    "save_trace": "present.chrome_trace",
    "search": "sweep_workflows",
    "serve": "serving_workflows",
    "sweep": "sweep_workflows",
    "trace": "workflows",
    "traffic": "cost.table",
}

__all__ = [
    "DDP",
    "FSDP",
    "Advice",
    "Cluster",
    "Cost",
    "DataParallel",
    "Decoder",
    "Device",
    "Engine",
    "Execution",
    "Explanation",
    "Gemm",
    "GpuComparison",
    "Graph",
    "Host",
    "Input",
    "Intensity",
    "Mesh",
    "Op",
    "ParallelPrediction",
    "Prediction",
    "Profile",
    "Savers",
    "Serving",
    "Validation",
    "advise",
    "bandwidth_to_match",
    "clusters",
    "collective_time",
    "compare_gpus",
    "compute_bound_from",
    "devices",
    "explain",
    "fit_into",
    "gpu_bound_from",
    "intensity",
    "load_cluster",
    "load_device",
    "load_host",
    "measure_model",
    "parallel",
    "plot",
    "predict",
    "rule",
    "save_report",
    "save_trace",
    "search",
    "serve",
    "sweep",
    "trace",
    "traffic",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = import_module(f"rooflinekit.{_HOME[name]}")
    return import_module(f"{home.__name__}.{name}") if name == "plot" else getattr(home, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
