"""A fixture for tests that set up the log of their process."""

import logging
import sys
from collections.abc import Iterator

import pytest


@pytest.fixture
def root_logger() -> Iterator[None]:
    """Restore the log handlers, the log level and the exception hook of this process after a test."""
    root, hook = logging.getLogger(), sys.excepthook
    handlers, level = list(root.handlers), root.level
    yield
    for handler in root.handlers:
        if handler not in handlers:
            handler.close()
    root.handlers[:] = handlers
    root.setLevel(level)
    sys.excepthook = hook
