"""Test the schemas that a run creates in an empty database and drops at its end."""

from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from harness.cloud import CloudSpec, created_schemas
from moorage import errors
from moorage.db.database import Database
from placement_store.schema import MAIN


def test_of_two_runs_that_found_one_database_empty_the_second_is_refused_and_the_first_goes_on(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/empty.sqlite"
    with closing(Database(url, "main")) as first, closing(Database(url, "main")) as second, ExitStack() as first_run:

        def begin_first(*_: Any) -> None:
            first_run.enter_context(created_schemas(first, CloudSpec()))

        # The first statement of the second run reads the names of the tables.
        sa.event.listen(second.engine, "after_cursor_execute", begin_first, once=True)
        with pytest.raises(errors.ConfigurationError, match="the database is not empty"):
            first_run.enter_context(created_schemas(second, CloudSpec()))
        MAIN.check(first)

        first_run.close()
        assert sa.inspect(first.engine).get_table_names() == []
