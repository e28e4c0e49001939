"""The server before an engine: when a prompt that was sent is in the engine's queue, and when clients have a token."""

from __future__ import annotations

from dataclasses import dataclass, field

from rooflinekit.serving.settings import Engine
from rooflinekit.serving.traffic import Request


@dataclass(slots=True)
class FrontEnd:
    """Receives requests in the order in which they are sent, and hands out the tokens of steps that end.

    Where handing out takes time (`Engine.token_s`), one thread does that and reads the prompts in between, first come
    first served. Otherwise requests do not wait for each other, and tokens are there when their step ends.
    """

    engine: Engine
    read_elsewhere: bool = False  # requests come with the cache of their prompts, past the front end
    free_s: float = 0.0  # when the thread is through with all that it has got so far
    queued_s: list[float] = field(default_factory=list)  # when each request so far reaches the engine's queue

    @property
    def one_thread(self) -> bool:
        """Whether requests and tokens wait for each other."""
        return self.engine.token_s > 0

    def receive(self, request: Request) -> None:
        """The next request, sent no earlier than those before."""
        engine, sent_s = self.engine, request.arrival_s
        if self.read_elsewhere:
            self.queued_s.append(sent_s)
        elif self.one_thread:
            self.free_s = max(self.free_s, sent_s) + engine.thread_s(request.input, 0)
            self.queued_s.append(self.free_s + engine.request_s)
        else:
            self.queued_s.append(self.earliest_s(request))

    def earliest_s(self, request: Request) -> float:
        """No later than a request reaches the queue that is not sent yet; where none waits for another, just then."""
        if self.read_elsewhere or self.one_thread:
            return request.arrival_s
        return request.arrival_s + self.engine.received_s(request.input)

    def hand_out(self, first_s: float, last_s: float, steps: int, tokens: float) -> tuple[float, float]:
        """When clients have the tokens of the first and of the last of so many steps, which end at these moments and
        at even distances between. tokens: of each step.
        """
        work_s = tokens * self.engine.token_s
        if not work_s:
            return first_s, last_s
        first_out_s = max(self.free_s, first_s) + work_s
        self.free_s = max(first_out_s + (steps - 1) * work_s, last_s + work_s)
        return first_out_s, self.free_s
