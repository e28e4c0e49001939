"""The program, called as a user calls it."""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from rooflinekit.cli import app as cli


@dataclass(frozen=True, slots=True)
class Result:
    """What a call printed, and its exit status."""

    status: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """What `--json` printed."""
        return json.loads(self.out)

    def answered(self) -> str:
        """It went well: status 0, and nothing on standard error. What it printed."""
        assert (self.status, self.err) == (0, "")
        return self.out

    def refused(self, start: str = "", *, has: str = "") -> None:
        """It was wrong use: status 2, nothing on standard output, and one line on standard error that begins so and
        has these words.
        """
        assert (self.status, self.out) == (2, "")
        assert self.err.startswith(f"rooflinekit: {start}"), self.err
        assert has in self.err
        assert self.err.count("\n") == 1, self.err


Run = Callable[..., Result]


def caller(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """A function that runs `rooflinekit` with its arguments, where there is no terminal."""
    monkeypatch.delenv("COLUMNS", raising=False)

    def call(*args: object) -> Result:
        monkeypatch.setattr(sys, "argv", ["rooflinekit", *map(str, args)])
        status = 0
        try:
            cli.main()
        except SystemExit as stop:
            status = int(stop.code or 0)
        return Result(status, *capsys.readouterr())

    return call
