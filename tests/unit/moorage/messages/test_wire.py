"""Test messages on the wire: requests are decoded strictly, replies leniently, and the content sets the version."""

import json
import tracemalloc
from typing import Annotated, Any, ClassVar, get_args, get_origin

import msgspec
import pytest
from msgspec import field
from support.bus.message_samples import RECORDS, VERSIONS, every_message, nested_values, parts
from support.scheduler.builders import CELLS, select

from moorage import errors, messages
from moorage.addresses import mask_url
from moorage.messages.wire import NEXT_VERSION, Message, Mutation, decode, decode_strictly, encode
from moorage.model import Destination, Explanation, Name, Value

#: The fields of all messages of the last released version, and of the values within them, by the name of their class.
FORMER_FIELDS: dict[str, list[str]] = json.loads((RECORDS / f"fields-{VERSIONS[-1]}.json").read_text())
UUID = "00000000-0000-0000-0000-000000000001"


class Inner(Value, frozen=True, kw_only=True):
    since: ClassVar = {"colour": "1.11"}
    amount: int = 0
    colour: str | None = None


class Order(Mutation[list[Inner]], frozen=True, kw_only=True):
    topic = "shop"
    method = "order"
    version = "1.1"
    since: ClassVar = {"note": "1.10", "gift": "1.9"}
    name: Name
    inner: Inner | None = None
    many: tuple[Inner, ...] = ()
    by_name: dict[str, Inner] = field(default_factory=dict)
    note: str | None = None
    gift: bool = False


def order(**fields: Any) -> Order:
    return Order(request_id="r-1", name="x", **fields)


#: The classes of the values in explanations.
EXPLANATIONS = {Explanation, *nested_values(Explanation)}
EVERY = pytest.mark.parametrize("kind", every_message(), ids=lambda kind: kind.__name__)


def test_an_encoded_message_is_decoded_to_the_same_message() -> None:
    sent = order(inner=Inner(amount=2), many=(Inner(), Inner(amount=1)), by_name={"a": Inner(amount=3)}, gift=True)
    assert decode_strictly(Order, json.loads(json.dumps(encode(sent)))) == sent


def test_fields_with_their_default_are_not_encoded() -> None:
    assert encode(order()) == {"request_id": "r-1", "name": "x"}


@pytest.mark.parametrize(
    ("data", "path"),
    [
        ({"name": "x"}, "$"),
        ({"request_id": "r-1", "name": ""}, "$.name"),
        ({"request_id": "no spaces", "name": "x"}, "$.request_id"),
        ({"request_id": "r-1", "name": "x", "inner": {"amount": "1"}}, "$.inner.amount"),
        ({"request_id": "r-1", "name": "x", "many": [{}, {"amount": None}]}, "$.many[1].amount"),
        ([], "$"),
        (None, "$"),
        ("x" * 1_000_000, "$"),
    ],
)
def test_an_invalid_field_is_named_by_its_path_in_few_words(data: object, path: str) -> None:
    with pytest.raises(errors.InvalidRequest) as caught:
        decode_strictly(Order, data)
    assert caught.value.data["path"] == path
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("extra", "path"),
    [
        ({"shade": 1}, "$"),
        ({"inner": {"shade": 1}}, "$.inner"),
        ({"many": [{}, {"shade": 1}]}, "$.many[1]"),
        ({"by_name": {"a": {"shade": 1}}}, "$.by_name['a']"),
    ],
)
def test_an_unknown_field_is_refused_in_a_request_and_ignored_in_a_reply(extra: dict[str, Any], path: str) -> None:
    data = {"request_id": "r-1", "name": "x", **extra}
    with pytest.raises(errors.InvalidRequest, match="shade") as caught:
        decode_strictly(Order, data)
    assert caught.value.data["path"] == path
    assert decode(Order, data).name == "x"


@pytest.mark.parametrize(
    ("data", "path"),
    [
        ({"name": "caf\udce9"}, "$.name"),
        ({"name": "x", "note": "\ud800"}, "$.note"),
        ({"name": "x", "by_name": {"\udfff": {}}}, "$.by_name"),
    ],
)
def test_a_text_that_is_not_written_in_utf8_is_refused_by_its_path(data: dict[str, Any], path: str) -> None:
    # JSON on the bus may contain half of a surrogate pair.
    with pytest.raises(errors.InvalidRequest, match="UTF-8") as caught:
        decode_strictly(Order, json.loads(json.dumps({"request_id": "r-1", **data})))
    assert caught.value.path == path
    assert json.loads(json.dumps(caught.value.data)) == caught.value.data


@pytest.mark.parametrize("number", [float("inf"), float("nan")])
def test_a_field_with_a_number_that_json_does_not_have_is_refused_by_its_path(number: float) -> None:
    # The JSON libraries of some clients write such numbers.
    data = json.loads(json.dumps({"older_than": number}))
    with pytest.raises(errors.InvalidRequest) as caught:
        decode_strictly(messages.ListClaims, data)
    assert caught.value.path == "$.older_than"


def test_the_name_of_a_field_that_is_not_written_in_utf8_is_refused() -> None:
    with pytest.raises(errors.InvalidRequest, match="not written in UTF-8"):
        decode_strictly(Order, {"name": "x", "\ud800": 1})


class Described(Mutation[list[Inner]], frozen=True, kw_only=True):
    topic = "shop"
    method = "describe"
    attributes: dict[str, Any] = field(default_factory=dict)


def nested(levels: int, key: str = "a") -> dict[str, Any]:
    value: Any = 1
    for _ in range(levels):
        value = {key: value}
    return {"request_id": "r-1", "attributes": {"x": value}}


@pytest.mark.parametrize("levels", [100, 900, 985, 995, 2000])
def test_values_that_are_nested_too_deeply_are_refused(levels: int) -> None:
    with pytest.raises(errors.InvalidRequest, match="more than 100 levels deep"):
        decode_strictly(Described, nested(levels))
    assert decode_strictly(Described, nested(50))


def test_the_paths_of_nested_values_with_long_names_take_little_memory() -> None:
    data = nested(90, "k" * 10_000)
    tracemalloc.start()
    decode_strictly(Described, data)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 2_000_000


def test_a_text_in_any_language_is_accepted() -> None:
    assert decode_strictly(Order, encode(order(note="café, 日本, 🐧"))).note == "café, 日本, 🐧"


def test_the_lowest_version_depends_on_the_fields_that_are_set() -> None:
    assert order().lowest_version() == "1.1"
    assert order(gift=True).lowest_version() == "1.9"
    assert order(gift=True, note="hi").lowest_version() == "1.10"


def test_a_field_of_a_nested_value_may_raise_the_version_of_one_message() -> None:
    def asked(**destination: Any) -> str:
        return select(requested_destination=Destination(**destination)).lowest_version()

    assert asked(cell=CELLS[0]) == "1.0"
    assert asked(cell=CELLS[0], allow_cross_cell_move=True) == "1.4"
    assert asked(node="node1") == "1.0"
    assert asked(node_uuid=UUID) == "1.9"


@pytest.mark.parametrize(
    "within",
    [{"inner": Inner(colour="red")}, {"many": (Inner(), Inner(colour="red"))}, {"by_name": {"a": Inner(colour="red")}}],
)
def test_a_later_field_of_a_nested_value_raises_the_version_of_every_message_with_it(within: dict[str, Any]) -> None:
    assert order(inner=Inner(amount=3)).lowest_version() == "1.1"
    assert order(**within).lowest_version() == "1.11"
    assert Order.newest_version() == "1.11"


@EVERY
def test_a_field_that_was_not_in_the_previous_release_names_its_version(kind: type[Message[Any]]) -> None:
    for value in (kind, *nested_values(kind)):
        # A new class of values is only in a new field or message.
        new = set(value.__struct_fields__) - set(FORMER_FIELDS.get(value.__name__, value.__struct_fields__))
        wanted = f"{value.__name__}: name the version of each new field in its `since`"
        assert {value.since.get(name) for name in new} <= {NEXT_VERSION}, wanted
    is_new = f"{kind.__name__} is new: its version is {NEXT_VERSION}"
    assert kind.__name__ in FORMER_FIELDS or kind.version == NEXT_VERSION, is_new


def test_the_version_under_development_follows_the_last_released_one() -> None:
    major, minor = parts(VERSIONS[-1])
    assert parts(NEXT_VERSION) == (major, minor + 1)


class Guarded(Mutation[list[Inner]], frozen=True, kw_only=True):
    topic = "shop"
    method = "guarded"
    since: ClassVar = {"seen": "1.6"}
    guards: ClassVar = frozenset({"seen"})
    seen: int | None = None


def test_a_guard_raises_the_version_and_is_not_part_of_the_digest() -> None:
    guarded = Guarded(request_id="r-1", seen=3)
    assert (guarded.lowest_version(), guarded.unguarded().lowest_version()) == ("1.6", "1.0")
    assert guarded.digest() == guarded.unguarded().digest() == Guarded(request_id="r-2", seen=4).digest()


def test_the_digest_covers_all_but_the_request_id() -> None:
    assert order().digest() == Order(request_id="r-2", name="x").digest()
    assert order().digest() != order(gift=True).digest()
    assert order(by_name={"a": Inner(), "b": Inner()}).digest() == order(by_name={"b": Inner(), "a": Inner()}).digest()


def test_digests_of_different_methods_differ() -> None:
    def made(kind: type[Mutation[Any]]) -> bytes:
        return kind(request_id="r-1", instance_uuid=UUID).digest()  # type: ignore[call-arg]

    assert made(messages.DeleteInstance) != made(messages.DeleteInCell)


@EVERY
def test_each_message_has_a_topic_a_method_and_a_type_of_reply(kind: type[Message[Any]]) -> None:
    assert kind.topic in {"placement", "scheduler", "conductor", "conductor.cell", "compute"}
    assert kind.method.isidentifier()
    assert kind.reply_type() is not None
    assert not get_args(kind)


@EVERY
def test_no_field_has_a_name_that_the_library_uses_itself(kind: type[Message[Any]]) -> None:
    assert {"self", "ctxt", "method"}.isdisjoint(kind.__struct_fields__)
    assert not hasattr(object(), kind.method)
    assert kind.method != "target"


@EVERY
def test_fields_with_a_version_exist_and_are_optional(kind: type[Message[Any]]) -> None:
    assert {path.partition(".")[0] for path in kind.since} <= set(kind.__struct_fields__)


@EVERY
def test_every_number_of_a_request_fits_into_a_column(kind: type[Message[Any]]) -> None:
    unbounded = {
        f"{value.__name__}.{field.name}"
        # Explanations are stored as documents.
        for value in {kind} | nested_values(kind) - EXPLANATIONS
        for field in msgspec.structs.fields(value)
        if _is_unbounded(field.type)
    }
    assert unbounded == set()


def test_a_number_that_does_not_fit_into_a_column_is_refused_by_its_path() -> None:
    with pytest.raises(errors.InvalidRequest) as caught:
        decode_strictly(messages.AuditStore, {"after": 2**63})
    assert caught.value.data["path"] == "$.after"


def test_no_two_messages_of_one_topic_share_a_method() -> None:
    names = [(kind.topic, kind.method) for kind in every_message()]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("url", "masked"),
    [
        ("inproc://name/", "inproc://name/"),
        ("rabbit://u:p@h:5672/v", "rabbit://u:***@h:5672/v"),
        ("rabbit://u:p@h1:1,u2:q@h2:2/v?ssl=true", "rabbit://u:***@h1:1,u2:***@h2:2/v?ssl=true"),
        ("rabbit://u@h/", "rabbit://u@h/"),
        ("mysql+pymysql://u:a/b,c:d@e@h/db?charset=utf8mb4", "mysql+pymysql://u:***@h/db?charset=utf8mb4"),
        ("sqlite:///file.db", "sqlite:///file.db"),
        ("mysql+pymysql://h/db?user=u&password=p@q&ssl_ca=f", "mysql+pymysql://h/db?user=u&password=***&ssl_ca=f"),
        ("mysql+pymysql://u:p@h/db?Passwd=p2", "mysql+pymysql://u:***@h/db?Passwd=***"),
        (
            "mysql+pymysql://u@h/db?ssl_key=f&ssl_key_password=p",
            "mysql+pymysql://u@h/db?ssl_key=f&ssl_key_password=***",
        ),
        ("no url", "no url"),
        ("u:p@h:5672/v", "u:***@h:5672/v"),
        ("rabbit//u:p@h/v", "rabbit//u:***@h/v"),
        ("rabbit:/u:p@h/v", "rabbit:***@h/v"),
    ],
)
def test_no_password_is_left_in_a_url(url: str, masked: str) -> None:
    assert mask_url(url) == masked


def _is_unbounded(of: Any) -> bool:
    """Return whether there is an integer without an upper bound in a type."""
    within = get_args(of)
    if get_origin(of) is Annotated and within[0] is int:
        return all(meta.le is None for meta in within[1:])
    return of is int or any(_is_unbounded(each) for each in within)
