"""Test the commands `moorage aggregate` with a scheduler on an in-process bus."""

from support.scheduler.operator import Operator, operator_of_hosts

from placement_store.schema import provider_aggregates

operator = operator_of_hosts


def test_an_aggregate_is_created_filled_listed_shown_and_deleted(operator: Operator) -> None:
    created = operator.types(
        "aggregate", "create", "ssd", "--metadata", "disk=ssd", "--metadata", "a=b=c", "--zone", "e"
    )
    assert created == {
        "uuid": created["uuid"],
        "name": "ssd",
        "zone": "e",
        "metadata": {"a": "b=c", "availability_zone": "e", "disk": "ssd"},
        "hosts": [],
    }
    operator.types("aggregate", "add-host", "ssd", "host1")
    added = operator.types("aggregate", "add-host", created["uuid"], "host3", "--cell", "cell1")
    assert added["hosts"] == [{"host": "host1", "cell": "cell0"}, {"host": "host3", "cell": "cell1"}]
    assert operator.types("aggregate", "show", "ssd") == added
    assert operator.types("aggregate", "list") == [{**added, "hosts": 2}]
    assert operator.types("aggregate", "list", "--host", "host2") == []
    assert {host["host"]: host["zone"] for host in operator.types("host", "list")} == {
        "host1": "e",
        "host2": "nova",
        "host3": "e",
    }
    changed = operator.types(
        "aggregate",
        "set",
        "ssd",
        "--name",
        "nvme",
        "--unset",
        "a",
        "--unset",
        "availability_zone",
        "--metadata",
        "disk=x",
    )
    assert (changed["name"], changed["zone"], changed["metadata"]) == ("nvme", None, {"disk": "x"})
    assert operator.types("aggregate", "remove-host", "nvme", "host3")["hosts"] == [{"host": "host1", "cell": "cell0"}]
    assert "has 1 host" in operator.is_refused("aggregate", "delete", "nvme")
    assert operator.types("aggregate", "delete", "nvme", "--force", "--dry-run")["deleted"] is False
    gone = operator.types("aggregate", "delete", "nvme", "--force")
    assert (gone["deleted"], gone["uuid"], len(gone["hosts"])) == (True, created["uuid"], 1)
    assert operator.types("aggregate", "list") == []


def test_a_table_has_a_line_for_each_key_and_each_host(operator: Operator) -> None:
    operator.types("aggregate", "create", "ssd", "--metadata", "disk=ssd", "--metadata", "rack=7")
    operator.types("aggregate", "add-host", "ssd", "host1")
    shown = operator.reads("aggregate", "show", "ssd")
    for line in ("disk=ssd", "rack=7", "host1 in cell0"):
        assert [row for row in shown.splitlines() if line in row]


def test_invalid_commands_are_refused_with_the_reason(operator: Operator) -> None:
    operator.types("aggregate", "create", "east", "--zone", "e")
    operator.types("aggregate", "create", "west", "--zone", "w")
    operator.types("aggregate", "add-host", "east", "host1")
    for said, words in {
        "There is no host aggregate nothing": ("show", "nothing"),
        "The host aggregate east exists already": ("create", "east"),
        "There is no host nobody": ("add-host", "east", "nobody"),
        "There is no host host2 in aggregate east": ("remove-host", "east", "host2"),
        "1 host(s), and is only deleted with force": ("delete", "east"),
        "There is no host host1 in that cell": ("add-host", "west", "host1", "--cell", "cell1"),
        "There is no cell nowhere": ("add-host", "east", "host1", "--cell", "nowhere"),
        "zone e by aggregate east": ("add-host", "west", "host1"),
        "ram_weight_multiplier is 'much', which is no number": (
            *("set", "east"),
            *("--metadata", "ram_weight_multiplier=much"),
        ),
        "'disk' is not KEY=VALUE": ("set", "east", "--metadata", "disk"),
        "argument --metadata: disk is given twice": ("set", "east", "--metadata", "disk=a", "--metadata", "disk=b"),
        "--metadata availability_zone=w is another one": (
            *("create", "new", "--zone", "e"),
            *("--metadata", "availability_zone=w"),
        ),
        "disk is to be set, too": ("set", "east", "--unset", "disk", "--metadata", "disk=a"),
        "availability_zone is to be set, too": ("set", "east", "--unset", "availability_zone", "--zone", "w"),
        "it has 1 to 255 characters": ("create", "x" * 256),
        "4096 characters at most": ("create", "new", "--metadata", "key=" + "x" * 4097),
    }.items():
        assert said in operator.is_refused("aggregate", *words)


def test_rows_that_are_missing_among_providers_are_listed_and_restored(operator: Operator) -> None:
    uuid = operator.types("aggregate", "create", "ssd")["uuid"]
    operator.types("aggregate", "add-host", "ssd", "host3")
    assert operator.types("aggregate", "sync") == []
    operator.rig.database.write(lambda connection: connection.execute(provider_aggregates.delete()))
    [missing] = operator.types("aggregate", "sync", "--dry-run")
    assert {**missing, "provider": None} == {
        "aggregate": "ssd",
        "uuid": uuid,
        "host": "host3",
        "cell": "cell1",
        "provider": None,
        "added": False,
    }
    assert operator.types("aggregate", "sync") == [{**missing, "added": True}]
    assert operator.types("aggregate", "sync") == []
