"""A program that is paused in the middle of its transaction; it imports few modules, so that it starts quickly."""

import os
import signal
import sys
from pathlib import Path

from sqlalchemy import Column, Connection, Integer, MetaData, Table, select

from moorage.db.database import Database

#: Seconds: MariaDB's time-out for idle transactions, and a writer's for a lock. MariaDB supports only whole seconds.
IDLE, LOCK_WAIT = 3.0, 1.0
COUNTERS = Table("counters", MetaData(), Column("id", Integer, primary_key=True), Column("n", Integer, nullable=False))


def lock(connection: Connection) -> None:
    """Lock the only row."""
    connection.execute(select(COUNTERS).where(COUNTERS.c.id == 1).with_for_update())


def add(connection: Connection, amount: int) -> None:
    """Add to the row's count."""
    connection.execute(COUNTERS.update().where(COUNTERS.c.id == 1).values(n=COUNTERS.c.n + amount))


def open_database(url: str, idle_transaction: float = IDLE) -> Database:
    """Return the database with short waits."""
    return Database(url, "main", lock_wait=LOCK_WAIT, idle_transaction=idle_transaction)


def be_paused(url: str, first: str, tries: Path) -> None:
    """Lock or change the row, pause there in the first try, and finally add ten; ``tries`` gets a line for each try."""
    database = open_database(url)

    def work(connection: Connection) -> None:
        if first == "locked":
            lock(connection)
        else:
            add(connection, 1)
        with tries.open("a") as file:
            file.write("begun\n")
        if tries.read_text().count("begun") == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        add(connection, 10)

    database.write(work)
    database.close()


if __name__ == "__main__":
    be_paused(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
