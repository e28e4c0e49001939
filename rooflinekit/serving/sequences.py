"""Requests in an engine."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rooflinekit.errors import CapacityError
from rooflinekit.serving.answers import Answered
from rooflinekit.serving.traffic import Request


@dataclass(slots=True)
class Sequence:
    """A request in the engine. While it runs, its context is `read` and what decoding steps since `joined` gave."""

    answer: Answered
    number: int
    to_read: int  # tokens of the prompt, and after preemption of the answer so far, that are not in the cache
    read: int  # tokens in the cache when it joined those that run
    given: float = 0  # tokens of the answer when it joined
    joined: int = 0  # decoding steps before
    ends: int = 0  # decoding steps when it has its last token

    @property
    def own(self) -> int:
        """Tokens read into room of its own: all but those that requests share."""
        return self.read - self.answer.request.cached

    @property
    def whole(self) -> int:
        """Room of its own for all its tokens."""
        request = self.answer.request
        return request.input + request.output - request.cached


def check_fit(requests: Iterable[Request], cache_tokens: float) -> None:
    """Raises CapacityError for a request that the empty cache does not hold."""
    for request in requests:
        if request.input + request.output > cache_tokens:
            raise CapacityError(
                f"a request of {request.input:,} tokens in and {request.output:,} out does not fit a cache of "
                f"{max(0, int(cache_tokens)):,} tokens; choose a cache or weights of fewer bits, more GPUs, or shorter "
                "requests"
            )
