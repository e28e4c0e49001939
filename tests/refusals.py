"""What wrong use of Python is answered with."""

import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest


def refused(kind: type[Exception], message: str) -> AbstractContextManager[Any]:
    """What raises this error within, and says this and no more."""
    return pytest.raises(kind, match=rf"\A{re.escape(message)}\Z")


def refusal(error: type[Exception], call: Callable[..., object], *args: Any, **options: Any) -> str:
    """The words of the error of this kind that the call raises."""
    with pytest.raises(error) as caught:
        call(*args, **options)
    return str(caught.value)
