"""Figures do not outlive the test that draws them."""

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _close() -> Iterator[None]:
    yield
    import matplotlib.pyplot as plt  # here, as some tests look at when it is loaded

    plt.close("all")
