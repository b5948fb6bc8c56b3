"""A database of the published Placement, filled with a cloud: trees, sharing providers, custom names, consumers."""

import random
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Engine, Table, insert, select

from moorage import ids

_CREATED, _UPDATED = datetime(2026, 1, 2, 3, 4, 5), datetime(2026, 2, 3, 4, 5, 6)
_CLASSES = ("VCPU", "MEMORY_MB", "DISK_GB")
_CUSTOM_CLASSES = ("CUSTOM_GOLD", "CUSTOM_UNUSED")
_CUSTOM_TRAITS = ("CUSTOM_RAID", "CUSTOM_NEVER")
#: The reserved share and the allocation ratio of inventories.
_SHARES = (
    {"reserved": 0, "allocation_ratio": 1.0},
    {"reserved": 16, "allocation_ratio": 16.0},
    {"reserved": 1, "allocation_ratio": 1.5},
)
#: The number of nodes in a tree: a tree has a root, its nodes, and a device of the first node.
_NODES = 3


class PlacementDatabase:
    """Fills the tables of the published Placement.

    :param tables: the package's own tables by name; the database of the engine has them, with the standard names.
    """

    def __init__(self, engine: Engine, tables: Mapping[str, Table]) -> None:
        self.engine = engine
        self._tables = tables
        self._random = random.Random(3)

    def fill(self, trees: int, consumers: int) -> None:
        """Write a cloud of ``trees`` trees with five providers each, and their consumers, as Placement itself would."""
        with self.engine.begin() as connection:
            # From this number on, Placement takes a class for a custom one.
            classes = [{"id": 10_000 + number, "name": name} for number, name in enumerate(_CUSTOM_CLASSES)]
            self._insert(connection, "resource_classes", classes)
            self._insert(connection, "traits", [{"name": name} for name in _CUSTOM_TRAITS])
            for kind in ("projects", "users"):
                self._insert(connection, kind, [{"external_id": f"{kind}-{n}"} for n in range(7)])
            self._insert(connection, "consumer_types", [{"name": "INSTANCE"}, {"name": "MIGRATION"}])
            self._insert(connection, "placement_aggregates", [{"uuid": ids.derived("a", n)} for n in range(9)])
            providers = [one for number in range(trees) for one in self._tree(connection, number)]
            self._describe(connection, providers)
            self._consume(connection, consumers, trees)

    def _tree(self, connection: Connection, number: int) -> list[int]:
        root = self._provider(connection, f"host{number}", None, None)
        nodes = [self._provider(connection, f"host{number}_node{n}", root, root) for n in range(_NODES)]
        return [root, *nodes, self._provider(connection, f"host{number}_device", nodes[0], root)]

    def _provider(self, connection: Connection, name: str, parent: int | None, root: int | None) -> int:
        table = self._tables["resource_providers"]
        row = {
            "uuid": ids.derived("provider", name),
            "name": name,
            "generation": self._random.randrange(50),
            "parent_provider_id": parent,
            "root_provider_id": root,
            "created_at": _CREATED,
            "updated_at": self._random.choice([None, _UPDATED]),
        }
        [number] = connection.execute(insert(table).values(row)).inserted_primary_key or (0,)
        if root is None:
            connection.execute(table.update().where(table.c.id == number).values(root_provider_id=number))
        return int(number)

    def _describe(self, connection: Connection, providers: Sequence[int]) -> None:
        classes, traits = self._by_name(connection, "resource_classes"), self._by_name(connection, "traits")
        self._insert(
            connection,
            "inventories",
            [
                {
                    "resource_provider_id": provider,
                    "resource_class_id": classes[name],
                    "total": 10_000,
                    "min_unit": 1,
                    "max_unit": 10_000,
                    "step_size": 1,
                    **self._random.choice(_SHARES),
                }
                for provider in providers
                for name in ("CUSTOM_GOLD", *_CLASSES)
            ],
        )
        self._insert(
            connection,
            "resource_provider_traits",
            [
                {"resource_provider_id": provider, "trait_id": traits[name]}
                for provider in providers
                for name in self._random.sample(["CUSTOM_RAID", "HW_CPU_X86_VMX", "MISC_SHARES_VIA_AGGREGATE"], 2)
            ],
        )
        self._insert(
            connection,
            "resource_provider_aggregates",
            [
                {"resource_provider_id": provider, "aggregate_id": number}
                for provider in providers
                for number in self._random.sample(range(1, 10), 2)
            ],
        )

    def _consume(self, connection: Connection, number: int, trees: int) -> None:
        classes = self._by_name(connection, "resource_classes")
        consumers = [
            {
                "uuid": ids.derived("consumer", position),
                "project_id": self._random.randrange(1, 8),
                "user_id": self._random.randrange(1, 8),
                "generation": self._random.randrange(9),
                "consumer_type_id": self._random.choice([None, 1, 2]),
                "created_at": _CREATED,
            }
            for position in range(number)
        ]
        self._insert(connection, "consumers", consumers)
        self._insert(
            connection,
            "allocations",
            [
                {
                    "consumer_id": consumer["uuid"],
                    "resource_provider_id": provider,
                    "resource_class_id": classes[name],
                    "used": self._random.randrange(1, 5),
                }
                for consumer in consumers
                for provider in self._of_one_tree(trees)
                for name in self._random.sample(_CLASSES, 2)
            ],
        )

    def _of_one_tree(self, trees: int) -> list[int]:
        """Return two providers of the same tree."""
        tree = self._random.randrange(trees) * 5
        return self._random.sample(range(tree + 1, tree + 6), 2)

    def _by_name(self, connection: Connection, table: str) -> dict[str, int]:
        columns = self._tables[table].c
        return {row.name: row.id for row in connection.execute(select(columns.name, columns.id))}

    def _insert(self, connection: Connection, table: str, rows: Sequence[Mapping[str, Any]]) -> None:
        connection.execute(self._tables[table].insert(), list(rows))
