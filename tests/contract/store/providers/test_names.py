"""Test the names of resource classes and traits, standard and custom: they are created, listed and deleted."""

from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any

import pytest
from sqlalchemy import Connection, select
from support.placement_store.builders import Store
from support.placement_store.races import beside

from moorage import errors, ids
from moorage.messages import (
    DeleteResourceClass,
    DeleteTrait,
    EnsureResourceClass,
    EnsureTrait,
    ListResourceClasses,
    ListTraits,
    SetInventories,
    SetTraits,
)
from moorage.model import Inventory
from placement_store.db import names
from placement_store.db.names import ResourceClassNames, TraitNames
from placement_store.schema import resource_classes

AVX = "HW_CPU_X86_AVX2"

# --- Numbers ---------------------------------------------------------------------------------------------------------


def test_the_number_of_a_standard_class_is_its_position_in_the_library(store: Store) -> None:
    names.sync(store.database)

    again = ResourceClassNames(store.database)

    assert [again.id_of(name) for name in ("VCPU", "MEMORY_MB", "DISK_GB")] == [0, 1, 2]
    assert again.name_of(0) == "VCPU"
    assert store.scalar(select(resource_classes.c.name).where(resource_classes.c.id == 0)) == "VCPU"


def test_custom_classes_are_created_on_demand_and_known_to_every_process(store: Store) -> None:
    store.names.ensure(["CUSTOM_B", "VCPU", "CUSTOM_A"])
    elsewhere = ResourceClassNames(store.database)

    numbers = {name: elsewhere.id_of(name) for name in ("CUSTOM_A", "CUSTOM_B")}

    assert min(numbers.values()) == 10_000
    assert len(set(numbers.values())) == 2
    assert store.names.id_of("CUSTOM_A") == numbers["CUSTOM_A"]
    assert elsewhere.name_of(numbers["CUSTOM_B"]) == "CUSTOM_B"


class Interrupted(ResourceClassNames):
    """Clears the cache directly after each read, as another thread does that has just deleted a name."""

    def _read(self, connection: Connection | None) -> Any:
        read = super()._read(connection)
        self.forget_numbers()
        return read


def test_a_class_is_found_even_if_another_thread_clears_the_cache_meanwhile(store: Store) -> None:
    store.names.ensure(["CUSTOM_A"])
    interrupted = Interrupted(store.database)

    assert interrupted.id_of("CUSTOM_A") == store.names.id_of("CUSTOM_A")
    assert interrupted.name_of(store.names.id_of("CUSTOM_A")) == "CUSTOM_A"


def test_a_class_that_is_neither_standard_nor_custom_is_not_found(store: Store) -> None:
    with pytest.raises(errors.ResourceClassNotFound) as caught:
        store.names.ensure(["GLUE"])
    assert caught.value.name == "GLUE"
    with pytest.raises(errors.ResourceClassNotFound):
        store.names.id_of("CUSTOM_GLUE")
    with pytest.raises(errors.ResourceClassNotFound):
        store.names.name_of(9_999)


def test_standard_traits_exist_and_writing_them_again_changes_nothing(store: Store) -> None:
    before = store.dispatcher.call(ListTraits())

    names.sync(store.database)

    assert {AVX, "MISC_SHARES_VIA_AGGREGATE"} <= set(before)
    assert store.dispatcher.call(ListTraits()) == before


# --- Creating, listing and deleting ---------------------------------------------------------------------------------


class Classes:
    """Resource classes as clients see them."""

    standard = "VCPU"
    not_found: type[errors.NotFound] = errors.ResourceClassNotFound

    def __init__(self, store: Store) -> None:
        self.store = store

    def ensure(self, name: str) -> bool:
        return self.store.dispatcher.call(EnsureResourceClass(request_id=ids.fresh(), name=name)).created

    def delete(self, name: str) -> None:
        self.store.dispatcher.call(DeleteResourceClass(request_id=ids.fresh(), name=name))

    def listed(self) -> list[str]:
        return self.store.dispatcher.call(ListResourceClasses())

    def give(self, provider: str, *given: str) -> None:
        self.store.dispatcher.call(
            SetInventories(
                request_id=ids.fresh(),
                uuid=provider,
                generation=self.store.generation(provider),
                inventories={name: Inventory(total=1) for name in given},
            )
        )

    def number(self, name: str) -> int:
        return ResourceClassNames(self.store.database).id_of(name)


class Traits(Classes):
    """Traits as clients see them."""

    standard, not_found = AVX, errors.TraitNotFound

    def ensure(self, name: str) -> bool:
        return self.store.dispatcher.call(EnsureTrait(request_id=ids.fresh(), name=name)).created

    def delete(self, name: str) -> None:
        self.store.dispatcher.call(DeleteTrait(request_id=ids.fresh(), name=name))

    def listed(self) -> list[str]:
        return self.store.dispatcher.call(ListTraits())

    def give(self, provider: str, *given: str) -> None:
        self.store.dispatcher.call(SetTraits(request_id=ids.fresh(), uuid=provider, traits=given))

    def number(self, name: str) -> int:
        return TraitNames(self.store.database).id_of(name)


@pytest.fixture(params=[Classes, Traits])
def kind(request: pytest.FixtureRequest, store: Store) -> Classes:
    """Resource classes, then traits."""
    make: Callable[[Store], Classes] = request.param
    return make(store)


def test_a_custom_name_is_created_once_and_listed_among_the_others(kind: Classes) -> None:
    assert "CUSTOM_A" not in kind.listed()

    assert (kind.ensure("CUSTOM_A"), kind.ensure("CUSTOM_A")) == (True, False)

    listed = kind.listed()
    assert listed.count("CUSTOM_A") == 1
    assert listed == sorted(listed)
    assert kind.standard in listed


# On SQLite there is no other writer during a transaction that writes.
@pytest.mark.backends("mariadb")
@pytest.mark.parametrize("was_deleted", [False, True])
def test_only_one_of_two_processes_that_create_a_name_concurrently_has_created_it(
    kind: Classes, store: Store, other_process: Store, was_deleted: bool
) -> None:
    for statement in count(1):
        name, created = f"CUSTOM_{statement}", list[bool]()
        if was_deleted:
            kind.ensure(name)
            kind.delete(name)

        def ensure(process: Store, name: str = name, created: list[bool] = created) -> None:
            created.append(type(kind)(process).ensure(name))

        if beside(store.database, statement, partial(ensure, other_process), partial(ensure, store)) is None:
            break
        assert sorted(created) == [False, True]


def test_a_name_created_again_after_its_deletion_has_its_old_number(kind: Classes, store: Store) -> None:
    kind.ensure("CUSTOM_A")
    number, provider = kind.number("CUSTOM_A"), store.provider()
    kind.give(provider, "CUSTOM_A")
    kind.give(provider)

    kind.delete("CUSTOM_A")

    assert "CUSTOM_A" not in kind.listed()
    with pytest.raises(kind.not_found) as caught:
        kind.give(provider, kind.standard, "CUSTOM_A")
    assert caught.value.name == "CUSTOM_A"
    with pytest.raises(kind.not_found):
        kind.delete("CUSTOM_A")
    kind.ensure("CUSTOM_B")
    assert kind.ensure("CUSTOM_A") is True
    assert kind.number("CUSTOM_A") == number != kind.number("CUSTOM_B")


def test_a_name_that_a_provider_has_is_not_deleted(kind: Classes, store: Store) -> None:
    kind.ensure("CUSTOM_A")
    kind.give(store.provider(), "CUSTOM_A")
    with pytest.raises(errors.NameInUse) as caught:
        kind.delete("CUSTOM_A")
    assert caught.value.name == "CUSTOM_A"
    assert "CUSTOM_A" in kind.listed()


def test_standard_names_can_be_neither_created_nor_deleted(kind: Classes) -> None:
    for name in (kind.standard, "GLUE"):
        for change in (kind.ensure, kind.delete):
            with pytest.raises(errors.InvalidRequest) as caught:
                change(name)
            assert caught.value.path == "$.name"
    assert kind.standard in kind.listed()


def test_a_name_deleted_by_another_process_is_not_given_to_a_provider_here(kind: Classes, store: Store) -> None:
    kind.ensure("CUSTOM_A")
    provider = store.provider()
    kind.give(provider, "CUSTOM_A")
    kind.give(provider)

    type(kind)(Store(store.database)).delete("CUSTOM_A")

    with pytest.raises(kind.not_found):
        kind.give(provider, "CUSTOM_A")
    assert store.get(provider).traits == ()
    assert store.get(provider).inventories == {}


def test_an_unknown_trait_is_not_given_to_a_provider(store: Store) -> None:
    provider = store.provider()
    with pytest.raises(errors.TraitNotFound) as caught:
        Traits(store).give(provider, AVX, "CUSTOM_TYPO")
    assert caught.value.name == "CUSTOM_TYPO"
    assert (store.get(provider).traits, store.generation(provider)) == ((), 0)


def test_traits_are_listed_by_name_by_prefix_and_by_whether_a_provider_has_them(store: Store) -> None:
    kind = Traits(store)
    for name in ("CUSTOM_GOLD", "CUSTOM_SILVER"):
        kind.ensure(name)
    kind.give(store.provider(), "CUSTOM_GOLD", AVX)
    listed = store.dispatcher.call

    assert listed(ListTraits(associated=True)) == ["CUSTOM_GOLD", AVX]
    assert listed(ListTraits(names=("CUSTOM_SILVER", "CUSTOM_UNKNOWN", AVX))) == ["CUSTOM_SILVER", AVX]
    assert listed(ListTraits(starting_with="CUSTOM_")) == ["CUSTOM_GOLD", "CUSTOM_SILVER"]
    assert listed(ListTraits(starting_with="CUSTOM_", associated=False)) == ["CUSTOM_SILVER"]
    assert listed(ListTraits(names=(AVX,), associated=False)) == []
