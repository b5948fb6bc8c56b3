"""The JSON of messages: msgspec encodes and decodes it in a fraction of the time that the AMQP library needs.

A number that JSON cannot represent becomes null, as in the databases.
"""

from typing import Any

import msgspec
from kombu import serialization
from kombu.utils import json as kombu_json


def dumps(message: object) -> str:
    """Encode a message."""
    try:
        return msgspec.json.encode(message).decode()
    except UnicodeEncodeError:  # a text that is not valid UTF-8: the receiver refuses it and names its field
        return str(kombu_json.dumps(message))  # type: ignore[no-untyped-call]


def loads(text: str) -> Any:
    """Decode a message."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:  # such a text; or a number that JSON cannot represent, from a former release
        return kombu_json.loads(text)  # type: ignore[no-untyped-call]


def enveloped(body: dict[str, Any]) -> dict[str, str]:
    """Return a message in the library's envelope, whose content is a JSON text."""
    return {"oslo.version": "2.0", "oslo.message": dumps(body)}


serialization.register(  # type: ignore[no-untyped-call]
    "json", dumps, loads, content_type="application/json", content_encoding="utf-8"
)
# The messaging library names no serializer, and the AMQP library took its own encoder as the default when it was
# imported.
serialization.registry._set_default_serializer("json")  # type: ignore[no-untyped-call]  # noqa: SLF001
