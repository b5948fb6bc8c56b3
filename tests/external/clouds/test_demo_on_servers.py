"""The demo on servers that were given to it."""

import json
import subprocess
import sys

import sqlalchemy


def demo(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "moorage.cli.shell", "demo", "--hosts", "4", "--instances", "6", "--seed", "3", *words],
        text=True, capture_output=True, check=False, timeout=180,
    )  # fmt: skip


def tables(url: str) -> list[str]:
    engine = sqlalchemy.create_engine(url)
    try:
        return sqlalchemy.inspect(engine).get_table_names()
    finally:
        engine.dispose()


def test_the_placements_are_those_of_the_embedded_default_and_the_servers_are_left_as_they_were(
    mariadb_url: str, rabbitmq_url: str
) -> None:
    embedded = demo("-f", "json")
    on_servers = demo("-f", "json", "--transport-url", rabbitmq_url, "--database-url", mariadb_url)

    assert on_servers.returncode == 0, on_servers.stderr
    assert json.loads(on_servers.stdout) == json.loads(embedded.stdout)
    assert tables(mariadb_url) == []


def test_a_database_that_holds_a_cloud_is_left_alone(mariadb_url: str, rabbitmq_url: str) -> None:
    engine = sqlalchemy.create_engine(mariadb_url)
    with engine.begin() as connection:
        connection.execute(sqlalchemy.text("CREATE TABLE instances_of_somebody (id INTEGER)"))
    engine.dispose()

    done = demo("--transport-url", rabbitmq_url, "--database-url", mariadb_url)

    assert done.returncode == 1
    assert "choose an empty one" in done.stderr
    assert tables(mariadb_url) == ["instances_of_somebody"]
