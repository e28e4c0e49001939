"""Errors by their whole sentence."""

import re
from contextlib import AbstractContextManager
from typing import Any

import pytest


def refused(kind: type[Exception], message: str) -> AbstractContextManager[Any]:
    """What raises this error within, and says this and no more."""
    return pytest.raises(kind, match=rf"\A{re.escape(message)}\Z")
