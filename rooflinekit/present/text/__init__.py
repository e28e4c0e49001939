"""Answers as lines and tables in a terminal. Its modules load when they are first used: rich and pandas take long."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rooflinekit.present.text import calibration as calibration
    from rooflinekit.present.text import choices as choices
    from rooflinekit.present.text import device_table as device_table
    from rooflinekit.present.text import devices as devices
    from rooflinekit.present.text import guard as guard
    from rooflinekit.present.text import predictions as predictions
    from rooflinekit.present.text import profiles as profiles
    from rooflinekit.present.text import serving as serving
    from rooflinekit.present.text import steps as steps
    from rooflinekit.present.text import tables as tables
else:

    def __getattr__(name: str) -> ModuleType:
        try:
            return import_module(f"{__name__}.{name}")
        except ModuleNotFoundError as error:
            raise AttributeError(name) from error
