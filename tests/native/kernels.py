"""The compiled kernels for tests; a test without a compiler is skipped."""

from __future__ import annotations

import pytest

from lookahead.native.build import Kernels
from lookahead.native.load import load_kernels


def kernels_or_skip() -> Kernels:
    found = load_kernels()
    if isinstance(found, str):
        pytest.skip(found)
    return found
