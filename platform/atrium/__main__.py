"""Entry point of `python -m atrium`, which is equivalent to the command `atrium`."""

from __future__ import annotations

import sys

from atrium.cli import main

if __name__ == "__main__":
    sys.exit(main())
