"""What options that are refused say."""

from __future__ import annotations

from typing import Any

import pytest

from bulkhead.errors import ConfigurationError
from bulkhead.option_set import Options


def refused(**options: Any) -> str:
    with pytest.raises(ConfigurationError) as caught:
        Options(**options)
    return str(caught.value)
