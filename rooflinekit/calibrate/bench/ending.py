"""A campaign that is told to end: a line that is being written is finished, no further one is begun."""

from __future__ import annotations

import threading

#: Held while a line is written: a process that ends itself from another thread waits for it.
WRITING = threading.Lock()

#: Set when the process is told to end. A library at work may swallow the interrupt, or make an error of its own of it:
#: what comes of such a case is not taken for a measurement.
TOLD = threading.Event()
