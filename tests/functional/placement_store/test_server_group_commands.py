"""Test the commands for server groups, over the bus and directly, with the same answers."""

from support.cli.operator import Operator, operator

from moorage import ids

__all__ = ["operator"]


def test_a_group_is_created_listed_shown_and_deleted(operator: Operator) -> None:
    created = operator.types("server-group create db --policy anti-affinity --project p --max 2")

    assert {name: value for name, value in created.items() if name != "uuid"} == {
        "name": "db",
        "project_id": "p",
        "policy": "anti-affinity",
        "max_server_per_host": 2,
        "members": {},
    }
    assert operator.types("server-group show", created["uuid"]) == created
    assert operator.types("server-group list") == [created | {"members": 0}]
    other = operator.types("server-group create cache --policy soft-affinity --project q --uuid", ids.fresh())
    assert operator.types("server-group list") == [other | {"members": 0}, created | {"members": 0}]
    assert operator.types("server-group list --project q") == [other | {"members": 0}]
    operator.does("server-group delete", created["uuid"])
    assert operator.types("server-group list --project p") == []


def test_an_invalid_server_group_is_refused_in_one_sentence(operator: Operator) -> None:
    refused, nobody = operator.is_refused, ids.fresh()
    group = operator.types("server-group create db --policy affinity --project p")["uuid"]

    again = refused("server-group create db --policy affinity --project p --uuid", group)
    assert again == f"The server group {group} exists already."
    assert refused("server-group show", nobody) == f"There is no server group {nobody}."
    assert refused("server-group delete", nobody) == f"There is no server group {nobody}."
    assert "invalid choice: 'near'" in refused("server-group create db --policy near --project p")
    assert refused("server-group create db --policy affinity --project p --max 0").endswith(
        "'0' is not a number from 1 to 1000"
    )
    limited = refused("server-group create db --policy affinity --project p --max 5")
    assert limited == "The request is invalid at --max: only the policy anti-affinity has a maximum."
    assert refused("server-group show x").endswith("'x' is not a uuid")
