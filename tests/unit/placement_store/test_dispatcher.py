"""Test that each message of the store's topic goes to the one function that serves it."""

import pytest
from support.bus.message_samples import every_message

from moorage import errors
from moorage.db.database import Database
from moorage.messages import ListHosts
from moorage.messages.wire import Mutation
from placement_store.dispatcher import SERVED, Dispatcher


def test_all_messages_of_the_topic_and_no_others_are_served() -> None:
    assert SERVED.keys() == {one for one in every_message() if one.topic == "placement"}


def test_messages_that_write_are_mutations_and_others_are_not() -> None:
    for message_type, served in SERVED.items():
        if served.transaction is not None:
            assert issubclass(message_type, Mutation) == (served.transaction == "write")


def test_a_message_of_another_topic_is_refused() -> None:
    dispatcher = Dispatcher(Database("sqlite://", "main"))
    with pytest.raises(errors.InvalidRequest, match="list_hosts is not served on scheduler"):
        dispatcher.call(ListHosts())
    dispatcher.database.close()
