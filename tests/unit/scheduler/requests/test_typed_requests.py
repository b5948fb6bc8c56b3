"""Test that a request has exactly the flavor, the image and the hints given on the command line."""

import argparse

import pytest

from moorage.cli import request_arguments
from moorage.model import RequestSpec


def typed(*words: str) -> RequestSpec:
    parser = argparse.ArgumentParser()
    request_arguments.add_options(parser, size_required=True)
    given = parser.parse_args(["--vcpus", "1", "--memory-mb", "512", *words])
    return request_arguments.request_spec(given, lambda topic: pytest.fail(f"{topic} is called without a group"))


def test_each_pair_is_a_word_of_its_own() -> None:
    spec = typed(
        *("--extra-spec", "hw:cpu_policy=dedicated", "--extra-spec", "trait:CUSTOM_A=required"),
        *("--image-property", "os=a=b", "--hint", "same_host="),
    )
    assert spec.flavor.extra_specs == {"hw:cpu_policy": "dedicated", "trait:CUSTOM_A": "required"}
    assert spec.image.properties == {"os": "a=b"}
    assert spec.scheduler_hints == {"same_host": ""}


@pytest.mark.parametrize("option", ["--extra-spec", "--image-property", "--hint"])
@pytest.mark.parametrize("text", ["", "a", "=b"])
def test_what_is_no_pair_is_refused(option: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        typed(option, text)
    assert "KEY=VALUE" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--extra-spec", "--image-property", "--hint"])
def test_a_second_value_for_a_key_is_refused_and_does_not_replace_the_first(
    option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        typed(option, "different_host=a", option, "different_host=b")
    assert f"argument {option}: different_host is given twice" in capsys.readouterr().err
