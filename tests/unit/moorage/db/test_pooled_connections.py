"""Test which connections the pool of a database keeps."""

import time
from contextlib import closing
from pathlib import Path

from sqlalchemy import event

from moorage.db.database import Database


def test_after_the_clock_has_been_set_back_not_every_transaction_opens_a_connection(tmp_path: Path) -> None:
    opened: list[object] = []
    with closing(Database(f"sqlite:///{tmp_path}/one.sqlite", "test")) as database:
        event.listen(database.engine, "connect", lambda connection, _record: opened.append(connection))
        # The pool dropped its connections, and afterwards the clock was set back by an hour.
        database.engine.pool._invalidate_time = time.time() + 3600

        for _ in range(5):
            with database.engine.connect() as connection:
                connection.exec_driver_sql("SELECT 1")

    assert len(opened) == 1
