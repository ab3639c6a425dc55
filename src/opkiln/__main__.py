"""`python -m opkiln`: the same commands as the `opkiln` script."""

from opkiln.runtime.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
