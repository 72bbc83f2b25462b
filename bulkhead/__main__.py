"""`python -m bulkhead` is the command `bulkhead`."""

from __future__ import annotations

import sys

from bulkhead.cli import main

if __name__ == "__main__":
    sys.exit(main())
