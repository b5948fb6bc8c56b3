"""Test the tree of errors: stable codes, readable texts, and data that can be sent."""

import json
import pickle

import pytest

from moorage import errors

# Without error classes that other tests have defined in the same process.
OURS = [kind for kind in errors.every_error() if kind.__module__ == errors.__name__]
EVERY = pytest.mark.parametrize("kind", OURS, ids=lambda kind: kind.__name__)


def sample(kind: type[errors.MoorageError]) -> errors.MoorageError:
    return kind(**{name: f"<{name}>" for name in kind.field_names()})


def test_codes_are_unique_and_begin_with_moorage() -> None:
    codes = [kind.code for kind in OURS]
    assert len(codes) == len(set(codes))
    assert all(code.startswith("moorage.") for code in codes)


@EVERY
def test_each_class_has_a_code_and_a_text_of_its_own(kind: type[errors.MoorageError]) -> None:
    assert "code" in vars(kind)
    assert vars(kind).get("__doc__")


@EVERY
def test_the_text_is_one_sentence_with_the_data_filled_in(kind: type[errors.MoorageError]) -> None:
    text = str(sample(kind))
    assert text.endswith(".")
    assert "\n" not in text
    assert "{" not in text
    assert "?" not in text


@EVERY
def test_an_error_that_an_older_peer_sent_can_still_be_printed(kind: type[errors.MoorageError]) -> None:
    assert str(kind())


@EVERY
def test_data_are_unchanged_by_json_and_pickle(kind: type[errors.MoorageError]) -> None:
    error = sample(kind)
    assert json.loads(json.dumps(error.kwargs)) == error.data
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert again.data == error.data


def test_a_text_that_is_not_written_in_utf8_can_be_sent_and_stored() -> None:
    fault = errors.BuildFailed(instance_uuid="i", host="Zürich", reason="caf\udce9")
    assert (fault.host, fault.reason) == ("Zürich", r"caf\udce9")
    assert str(fault).encode()


def test_data_of_a_newer_peer_are_dropped() -> None:
    error = errors.NotFound(kind="host", name="a", colour="red")  # type: ignore[call-arg]
    assert error.data == {"kind": "host", "name": "a"}
    assert not hasattr(error, "colour")


def test_data_are_attributes() -> None:
    error = errors.ConsumerGenerationConflict(consumer_uuid="c", named=None, found=3)
    assert (error.consumer_uuid, error.named, error.found) == ("c", None, 3)


def test_a_parent_catches_its_children() -> None:
    with pytest.raises(errors.NotFound, match="no host compute-1"):
        raise errors.HostNotFound(kind="host", name="compute-1")
    with pytest.raises(errors.CallerError):
        raise errors.InvalidRequest(path="$.name", reason="missing")


def test_the_article_before_a_kind_fits_it() -> None:
    assert str(errors.AlreadyExists(kind="inventory", name="VCPU")) == "The inventory VCPU exists already."
    assert str(errors.AlreadyExists(kind="cell", name="a cell1")) == "The cell a cell1 exists already."
    assert str(errors.AlreadyExists()) == "The ? ? exists already."  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("named", "found", "text"),
    [
        (3, 4, "The consumer c is at generation 4, not at 3."),
        (3, None, "The consumer c does not exist, and so it is not at generation 3."),
        (None, 4, "The consumer c exists already, at generation 4."),
    ],
)
def test_a_generation_conflict_says_in_words_that_a_consumer_does_not_exist(
    named: int | None, found: int | None, text: str
) -> None:
    assert str(errors.ConsumerGenerationConflict(consumer_uuid="c", named=named, found=found)) == text
