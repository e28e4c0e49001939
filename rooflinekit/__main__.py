"""`python -m rooflinekit`, and what the command `rooflinekit` starts with."""

import signal


def main() -> None:
    """Runs the command line. Ctrl-C while it is still being loaded ends the process without a traceback."""
    loading = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # not where it is to be ignored
    if loading:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from rooflinekit.cli.app import main as run

    if loading:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


if __name__ == "__main__":
    main()
