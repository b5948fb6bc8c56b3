"""A value that an option cannot have is told with the option and the file, in words for people."""

from pathlib import Path

import pytest

from moorage import errors
from moorage.config import options
from scheduler.plugins.loading import load_weighers


def test_an_invalid_value_is_reported_with_its_option_and_file(tmp_path: Path) -> None:
    file = tmp_path / "moorage.conf"
    file.write_text("[scheduler]\nbroken_plugin = maybe\n")
    with pytest.raises(errors.ConfigurationError) as refused:
        options.new(files=[file])

    assert str(refused.value) == (
        f"The configuration is wrong: Value for option broken_plugin in {file} is not valid: "
        "Valid values are [fail, skip], but found 'maybe'."
    )


def test_an_invalid_value_of_a_plugins_option_is_reported_in_one_sentence(tmp_path: Path) -> None:
    file = tmp_path / "moorage.conf"
    file.write_text("[weighers]\nram_weight_multiplier = much\n")
    with pytest.raises(errors.ConfigurationError) as refused:
        load_weighers(options.new(files=[file]), ["ram"])

    assert "ram_weight_multiplier" in str(refused.value)
    assert "LocationInfo" not in str(refused.value)
