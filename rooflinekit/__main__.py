"""`python -m rooflinekit`, and what the command `rooflinekit` starts with."""

import atexit
import gc
import os
import signal

#: Objects that are made before Python looks for cycles among them, and how often it looks among older ones: rarely.
#: A full look goes through what torch and its libraries have loaded, for a fifth of a second each time.
_COLLECT = 50_000, 20, 100


def main() -> None:
    """Runs the command line. Ctrl-C while it is still being loaded ends the process without a traceback."""
    loading = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # not where it is to be ignored
    if loading:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    gc.set_threshold(*_COLLECT)
    atexit.register(gc.freeze)  # a process that ends need not look for cycles once more
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy's threads take longer to start than a prediction
    from rooflinekit.cli.app import main as run

    if loading:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


if __name__ == "__main__":
    main()
