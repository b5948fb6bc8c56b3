"""Test that a cloud which could not start is refused before anything of it is started."""

from typing import Any

import pytest

from harness.cloud import CloudSpec
from moorage import errors


@pytest.mark.parametrize(
    "numbers", [{"cells": 0}, {"schedulers": 0}, {"hosts": -1}, {"cells": "2"}, {"schedulers": None}, {"hosts": 1.5}]
)
def test_a_cloud_that_could_not_start_is_refused_with_what_is_wrong(numbers: dict[str, Any]) -> None:
    [(name, number)] = numbers.items()

    with pytest.raises(errors.ConfigurationError, match=rf"{name}={number!r} is not a whole number from [01]"):
        CloudSpec(**numbers)
