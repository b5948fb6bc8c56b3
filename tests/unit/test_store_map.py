"""The map of the store's folder, which whoever is new to it reads first, shows all of it."""

import pkgutil
import re

import placement_store


def test_every_module_and_folder_of_the_store_is_on_its_map_and_nothing_else() -> None:
    table = str(placement_store.__doc__).partition("====")[2]
    there = {found.name + "/" * found.ispkg for found in pkgutil.iter_modules(placement_store.__path__)}

    assert set(re.findall(r"``(\w+/?)``", table)) == there
