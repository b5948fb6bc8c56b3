"""Test that the page on restoring selects the tables of the main schema in a database of all schemas, and no others."""

import re
from pathlib import Path

from moorage.db.schemas import known_schemas
from placement_store.schema import MAIN

PAGE = Path(__file__).parents[4] / "docs/restoring.md"


def test_the_statement_of_the_page_selects_exactly_the_tables_of_the_main_schema() -> None:
    [shell] = re.findall(r"table_name NOT REGEXP '([^']+)'", PAGE.read_text())
    # The shell leaves the dollar as it is.
    others = re.compile(shell.replace(r"\$", "$"))
    tables = {name for one in known_schemas().values() for name in {*one.metadata.tables, *one.bookkeeping_tables}}

    assert {name for name in tables if not others.search(name)} == {*MAIN.metadata.tables, *MAIN.bookkeeping_tables}
