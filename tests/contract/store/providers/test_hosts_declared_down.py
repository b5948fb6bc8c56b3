"""Test the list of hosts that an operator has declared down, whose answers are not waited for."""

from support.placement_store.builders import Store
from support.placement_store.group_builders import Groups

from moorage import ids
from moorage.messages import ListHostsDeclaredDown
from placement_store.schema import hosts

CELL = ids.derived("cell")


def declared_down(store: Store, *names: str, cell: str = CELL) -> list[str]:
    message = ListHostsDeclaredDown(cell_uuid=cell, service_hosts=names)
    return store.dispatcher.call(message)


def name_both(store: Store, nodes: tuple[str, str], name: str) -> None:
    """Give two compute nodes to one service host."""
    statement = hosts.update().where(hosts.c.compute_node_uuid.in_(nodes)).values(service_host=name)
    store.database.write(lambda connection: connection.execute(statement))


def test_forced_down_and_missing_hosts_are_declared_down_in_the_requested_order(store: Store) -> None:
    groups = Groups(store)
    up, down = groups.host(), groups.host(down=True)

    assert declared_down(store, "deleted", up, down) == ["deleted", down]
    groups.force_down(down, down=False)
    groups.force_down(up)
    assert declared_down(store, "deleted", up, down) == ["deleted", up]


def test_a_host_with_two_nodes_is_declared_down_when_both_nodes_are(store: Store) -> None:
    groups = Groups(store)
    nodes = groups.host(down=True), groups.host()
    name_both(store, nodes, "h")

    assert declared_down(store, "h") == []
    groups.force_down(nodes[1])
    assert declared_down(store, "h") == ["h"]


def test_a_disabled_host_is_listed_only_on_request(store: Store) -> None:
    groups = Groups(store)
    up, off, down = groups.host(), groups.host(), groups.host(down=True)
    statement = hosts.update().where(hosts.c.service_host == off).values(disabled=True)
    store.database.write(lambda connection: connection.execute(statement))
    message = ListHostsDeclaredDown(cell_uuid=CELL, service_hosts=(up, off, down), or_disabled=True)

    assert store.dispatcher.call(message) == [off, down]
    assert declared_down(store, up, off, down) == [down]


def test_only_a_deleted_host_is_listed_on_request(store: Store) -> None:
    groups = Groups(store)
    up, down = groups.host(), groups.host(down=True)
    message = ListHostsDeclaredDown(
        cell_uuid=CELL, service_hosts=(up, "deleted", down), or_disabled=True, only_deleted=True
    )

    assert store.dispatcher.call(message) == ["deleted"]
    assert message.lowest_version() == "1.9", "an earlier release would list the others too"


def test_a_host_of_the_same_name_in_another_cell_is_another_host(store: Store) -> None:
    up = Groups(store).host()
    assert declared_down(store, up) == []
    assert declared_down(store, up, cell=ids.derived("another cell")) == [up]
