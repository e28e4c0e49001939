"""`python -m rooflinekit`."""

from rooflinekit.cli.app import main

if __name__ == "__main__":
    main()
