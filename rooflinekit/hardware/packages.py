"""Specifications that other installed packages bring: entry points of the group rooflinekit.devices."""

from __future__ import annotations

from functools import cache
from importlib.metadata import entry_points
from importlib.resources import files
from importlib.resources.abc import Traversable
from types import ModuleType

from rooflinekit.errors import PluginError

GROUP = "rooflinekit.devices"


@cache
def specification_folders() -> tuple[tuple[str, Traversable], ...]:
    """For each entry point its package's name and folder, laid out as gpu_specs/: devices, hosts/, clusters/, prices/.

    Raises PluginError for one that cannot be imported or is no package.
    """
    found = []
    for point in sorted(entry_points(group=GROUP), key=lambda point: (point.value, point.name)):
        label = f"{GROUP}: {point.name} = {point.value}, of {point.dist.name if point.dist else 'a package'}"
        try:
            package = point.load()
        except Exception as error:  # whatever its import raises
            raise PluginError(f"{label}: {type(error).__name__}: {error}; repair or uninstall it") from error
        if not isinstance(package, ModuleType) or not hasattr(package, "__path__"):
            raise PluginError(f"{label}: expected a package with YAML files in it; repair or uninstall it")
        found.append((package.__name__, files(package)))
    return tuple(found)
