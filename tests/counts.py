"""How often tests repeat: small numbers for `make test`, the full ones where BULKHEAD_TEST_FULL=1 (`make test-all`).

Every count that makes a test longer is here, so that one place tells what a run has really shown.
"""

import os

FULL = os.environ.get("BULKHEAD_TEST_FULL") == "1"


def often(quick: int, full: int) -> int:
    """`full` in a full run, else `quick`."""
    return full if FULL else quick


ASYNC_EXCEPTIONS = often(1_000, 4_000)  # in each of a dozen stories
CANCELLATIONS = often(300, 2_000)  # on each asynchronous driver
HYPOTHESIS_EXAMPLES = often(50, 200)
HYPOTHESIS_STEPS = often(40, 80)
STRESS_SECONDS = often(1, 5)
STRESS_THREADS = 8
TENANT_IDS = often(20_000, 1_000_000)
