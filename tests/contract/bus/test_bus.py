"""Test messages, versions and errors on each bus: RabbitMQ in plain text and over TLS, and within one process."""

import logging
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from support.bus.greeting_service import (
    AnyContent,
    AskOldGreeting,
    Cloud,
    Fail,
    GetText,
    Greet,
    Greeting,
    GreetingService,
    GreetKnown,
    MisplacedKey,
    OldGreeting,
    OldGreetingService,
    TextService,
    Wait,
)

from moorage import errors
from moorage.bus.message_size import MAX_MESSAGE
from moorage.messages.wire import Message

# --- Messages and answers -------------------------------------------------------------------------------------------


def test_a_call_is_answered_with_a_value(cloud: Cloud) -> None:
    cloud.serve(GreetingService())
    assert cloud.client().call(Greet(name="Ada")) == Greeting(text="Hello Ada", by="greeting")


def test_a_cast_arrives(cloud: Cloud) -> None:
    service = GreetingService()
    cloud.serve(service)
    cloud.client().cast(Wait())
    assert service.entered.wait(5)
    service.may_leave.set()


def test_several_services_share_one_server(cloud: Cloud) -> None:
    cloud.serve(GreetingService(), TextService("la"))
    assert cloud.client().call(GetText()) == "la"
    assert cloud.client().call(Greet(name="Ada")).text == "Hello Ada"


def test_one_method_cannot_be_served_twice(cloud: Cloud) -> None:
    with pytest.raises(TypeError, match="greet"):
        cloud.caller.server(cloud.topic, "first", [GreetingService(), OldGreetingService()])


def test_arguments_are_copied(cloud: Cloud) -> None:
    cloud.serve(GreetingService())
    titles = {"countess": 1}
    cloud.client().call(Greet(name="Ada", titles=titles))
    assert titles == {"countess": 1}


def test_an_unknown_field_of_a_request_is_refused(cloud: Cloud) -> None:
    cloud.serve(GreetingService())
    with pytest.raises(errors.InvalidRequest, match="nonsense") as caught:
        cloud.client().call(AnyContent(name="Ada", nonsense=1))
    assert caught.value.data["path"] == "$"


def test_an_unknown_field_of_an_answer_is_ignored(cloud: Cloud) -> None:
    cloud.serve(GreetingService())
    assert cloud.client().call(AskOldGreeting(name="Ada")) == OldGreeting(text="Hello Ada")


def test_a_malformed_answer_is_an_internal_error(cloud: Cloud) -> None:
    class WrongAnswer(Message[int], frozen=True, kw_only=True):
        topic = "greeting"
        method = "greet"
        name: str

    cloud.serve(GreetingService())
    with pytest.raises(errors.InternalError):
        cloud.client().call(WrongAnswer(name="Ada"))


def test_an_answer_of_the_largest_size_arrives(cloud: Cloud) -> None:
    cloud.serve(TextService("x" * (MAX_MESSAGE - 100)))
    assert len(cloud.client().call(GetText())) == MAX_MESSAGE - 100


# A quotation mark takes two bytes on the bus and four in its envelope, a letter beyond ASCII seven.
@pytest.mark.parametrize("text", ["x" * MAX_MESSAGE, '"' * (MAX_MESSAGE // 4), "é" * (MAX_MESSAGE // 7 + 1)], ids=len)
def test_an_answer_that_is_too_large_for_a_message_is_a_typed_error(cloud: Cloud, text: str) -> None:
    cloud.serve(TextService(text))
    with pytest.raises(errors.ReplyTooLarge) as caught:
        cloud.client().call(GetText())
    assert (caught.value.method, caught.value.limit) == ("get_text", MAX_MESSAGE)
    assert MAX_MESSAGE < caught.value.size < 1.01 * MAX_MESSAGE


def test_a_request_that_is_too_large_for_a_message_is_a_typed_error_and_not_sent(cloud: Cloud) -> None:
    service = TextService("la")
    cloud.serve(service)
    with pytest.raises(errors.RequestTooLarge) as caught:
        cloud.client().call(GetText(words="x" * MAX_MESSAGE))
    assert (caught.value.method, caught.value.limit) == ("get_text", MAX_MESSAGE)
    assert MAX_MESSAGE < caught.value.size < 1.01 * MAX_MESSAGE
    assert cloud.client().call(GetText(words="x" * (MAX_MESSAGE - 200))) == "la"


@pytest.mark.parametrize(
    ("content", "path"),
    [
        (AnyContent(name=5), "$.name"),
        (AnyContent(name=""), "$.name"),
        (AnyContent(name=["Ada"]), "$.name"),
        (AnyContent(titles={}), "$"),
        (AnyContent(name="Ada", titles={"x": "y"}), "$.titles[...]"),
        (AnyContent(name="Ada", titles=[[[[]]]]), "$.titles"),
    ],
)
def test_an_invalid_message_is_refused_with_the_path_of_its_fault(cloud: Cloud, content: AnyContent, path: str) -> None:
    service = GreetingService()
    cloud.serve(service)
    with pytest.raises(errors.InvalidRequest) as caught:
        cloud.client().call(content)
    assert caught.value.data["path"] == path
    assert service.greeted == []


def test_ten_megabytes_of_junk_get_a_short_answer(cloud: Cloud) -> None:
    cloud.serve(GreetingService())
    for content in (AnyContent(name="x" * 10_000_000), AnyContent(name="Ada", nonsense=["x" * 1000] * 10_000)):
        with pytest.raises(errors.InvalidRequest) as caught:
            cloud.client().call(content)
        assert len(repr(caught.value.data)) < 1000
    assert cloud.client().call(Greet(name="Ada")).text == "Hello Ada"


# --- Versions -------------------------------------------------------------------------------------------------------


def test_the_lowest_version_that_carries_the_message_is_sent(cloud: Cloud) -> None:
    cloud.serve(OldGreetingService())
    assert cloud.client().call(Greet(name="Ada")).text == "Hello Ada"
    with pytest.raises(errors.InvalidRequest, match=r"1\.2") as caught:
        cloud.client().call(Greet(name="Ada", politely=True))
    assert caught.value.data["path"] == "$"


def test_a_server_of_a_former_release_gets_a_message_without_unknown_guards(cloud: Cloud) -> None:
    cloud.serve(OldGreetingService())
    assert cloud.client().call(GreetKnown(name="Ada", before=3)).text == "Hello Ada"
    with pytest.raises(errors.InvalidRequest, match=r"1\.2"):
        cloud.client().call(GreetKnown(name="Ada", before=3, politely=True))


def test_a_server_accepts_fields_of_later_versions(cloud: Cloud) -> None:
    cloud.serve(GreetingService())
    assert cloud.client().call(Greet(name="Ada", politely=True)).text == "Good day Ada"


@pytest.mark.parametrize("method", ["get_text", "target", "_answer", "__init__"])
def test_a_method_that_is_not_served_is_an_invalid_request(cloud: Cloud, method: str) -> None:
    class Odd(GetText, frozen=True, kw_only=True):
        pass

    Odd.method = method
    cloud.serve(GreetingService())
    with pytest.raises(errors.InvalidRequest, match="not served"):
        cloud.client().call(Odd())


# --- Errors ---------------------------------------------------------------------------------------------------------

SAMPLES: dict[str, Any] = {
    "instances": 3,
    "explanation": {"filters": [{"name": "ram", "removed": 7}], "nearest": None},
    "attempts": [{"host": "a", "reason": "ü"}, {"host": "b", "reason": ""}],
    "refusals": [{"asked": 2**40, "free": 1.5}],
    "count": 1,
    "named": None,
    "found": 0,
    "tries": 5,
    "seconds": 0.25,
}


OURS = [kind for kind in errors.every_error() if kind.__module__ == errors.__name__]


@pytest.mark.parametrize("kind", OURS, ids=lambda kind: kind.__name__)
def test_each_error_arrives_with_its_class_and_data(
    kind: type[errors.MoorageError], cloud_of_errors: tuple[Cloud, GreetingService]
) -> None:
    cloud, service = cloud_of_errors
    data = {name: SAMPLES.get(name, f"some {name} 'é'") for name in kind.field_names()}
    service.failure = lambda: kind(**data)
    with pytest.raises(kind) as caught:
        cloud.client().call(Fail())
    assert type(caught.value) is kind
    assert caught.value.data == data
    assert str(caught.value) == str(kind(**data))
    assert caught.value.__suppress_context__


@pytest.fixture(scope="module", params=["inproc", pytest.param("rabbit", marks=pytest.mark.servers)])
def cloud_of_errors(request: pytest.FixtureRequest) -> Iterator[tuple[Cloud, GreetingService]]:
    """One server for the tests of all errors."""
    url = f"inproc://{uuid4()}/" if request.param == "inproc" else request.getfixturevalue("shared_vhost")
    cloud, service = Cloud(url), GreetingService()
    cloud.serve(service)
    yield cloud, service
    cloud.close()


def test_an_unknown_error_arrives_as_its_nearest_known_parent(cloud: Cloud) -> None:
    cloud.serve(GreetingService(failure=lambda: MisplacedKey(kind="key", name="front door", drawer=3)))
    with pytest.raises(errors.NotFound) as caught:
        cloud.client().call(Fail())
    assert type(caught.value) is errors.NotFound
    assert caught.value.data == {"kind": "key", "name": "front door"}


def test_a_crash_is_an_internal_error_without_its_text(cloud: Cloud, caplog: pytest.LogCaptureFixture) -> None:
    cloud.serve(GreetingService(failure=lambda: ZeroDivisionError("secret")))
    with pytest.raises(errors.InternalError) as caught:
        cloud.client().call(Fail())
    assert caught.value.data == {"kind": "ZeroDivisionError"}
    assert "secret" not in str(caught.value)
    assert "secret" in caplog.text


def test_an_error_of_moorage_is_not_logged_as_a_crash(cloud: Cloud, caplog: pytest.LogCaptureFixture) -> None:
    cloud.serve(GreetingService(failure=lambda: errors.Overloaded(reason="busy")))
    with pytest.raises(errors.Overloaded):
        cloud.client().call(Fail())
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
