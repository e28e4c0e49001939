"""Measurements that are made up, as the fit takes them."""

import pandas as pd

from rooflinekit.calibrate.campaigns.campaign import Campaign
from rooflinekit.calibrate.fitting import observations
from rooflinekit.calibrate.fitting.observations import Observations


def observe(gpu: str, host: str, op: str, timing: str, rows: pd.DataFrame) -> Observations:
    """Rows of one op in one format; the last word of the host is the source's."""
    campaign = Campaign(gpu=gpu, source=host.split(" ")[-1], licence="", timing=timing, rows=rows)
    return observations.observe(campaign, op)
