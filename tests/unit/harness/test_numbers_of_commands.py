"""Test that commands with a cloud of their own refuse numbers with which they would not end."""

import pytest

from moorage.cli.shell import main


@pytest.mark.parametrize(
    ("words", "option"),
    [
        ("demo --hosts 99999999999", "--hosts"),
        ("demo --cells 99999999999", "--cells"),
        ("demo --instances 99999999999", "--instances"),
        ("bench candidates --candidates 100000000", "--candidates"),
        ("bench decide --hosts 99999999999", "--hosts"),
        ("bench build --clients 100000", "--clients"),
        ("bench idle --schedulers 100000", "--schedulers"),
        ("bench http --workers 100000", "--workers"),
        ("drill run race --clients 100000", "--clients"),
    ],
)
def test_a_number_with_which_a_run_would_not_end_is_refused(
    words: str, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words.split())

    assert ended.value.code == 2
    assert f"argument {option}: must be at most " in capsys.readouterr().err
