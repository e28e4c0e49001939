"""Measurements that are made up, as the fit takes them."""

from typing import Any

import pandas as pd

from rooflinekit.calibrate.campaigns.campaign import Campaign
from rooflinekit.calibrate.fitting import observations
from rooflinekit.calibrate.fitting.observations import Observations


def campaign(
    rows: pd.DataFrame, gpu: str = "gpu", timing: str = "profiler", source: str = "lab.example/data 7ab, table 3"
) -> Campaign:
    return Campaign(gpu=gpu, source=source, licence="CC0", timing=timing, rows=rows)


def elements(rows: Any, cols: Any, seconds: Any, op: str = "add") -> pd.DataFrame:
    """Rows of an elementwise op, in fp32."""
    return pd.DataFrame({"op": op, "dtype": "fp32", "rows": rows, "cols": cols, "seconds": seconds})


def observe(gpu: str, host: str, op: str, timing: str, rows: pd.DataFrame) -> Observations:
    """Rows of one op in one format; the last word of the host is the source's."""
    return observations.observe(campaign(rows, gpu, timing, host.split(" ")[-1]), op)
