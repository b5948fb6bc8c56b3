"""The guide shows the table that is played on a whole cloud."""

from support.operations.basis import WELL
from support.operations.table import GUIDE, guide, rows


def test_the_guide_has_the_table_as_it_is_played() -> None:
    assert GUIDE.read_text() == guide(), "run tests/support/operations/table.py"


def test_no_trouble_of_an_operation_stands_in_the_table_twice_under_one_policy() -> None:
    played = [(row.operation, row.trouble, policy) for row in rows() for policy in row.policies]
    assert len(played) == len(set(played))


def test_every_operation_meets_lost_replies_and_restarted_conductors() -> None:
    for operation in WELL.keys() - {"resize on its host"}:
        troubles = " ".join(row.trouble for row in rows() if row.operation == operation)
        assert "the reply is lost at" in troubles
        assert "the conductor is restarted at" in troubles
