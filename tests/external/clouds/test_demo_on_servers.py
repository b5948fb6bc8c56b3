"""The demo on servers that are given by their URLs."""

import json
import subprocess

import sqlalchemy
from support.processes.command import moorage


def demo(*words: str) -> subprocess.CompletedProcess[str]:
    return moorage("demo", "--hosts", "4", "--instances", "6", "--seed", "3", *words)


def tables(url: str) -> list[str]:
    engine = sqlalchemy.create_engine(url)
    try:
        return sqlalchemy.inspect(engine).get_table_names()
    finally:
        engine.dispose()


def test_the_demo_places_as_with_the_embedded_default_and_leaves_the_database_empty(
    mariadb_url: str, rabbitmq_url: str
) -> None:
    embedded = demo("-f", "json")
    on_servers = demo("-f", "json", "--transport-url", rabbitmq_url, "--database-url", mariadb_url)

    assert on_servers.returncode == 0, on_servers.stderr
    assert json.loads(on_servers.stdout) == json.loads(embedded.stdout)
    assert tables(mariadb_url) == []


def test_a_database_that_is_not_empty_is_refused_and_left_unchanged(mariadb_url: str, rabbitmq_url: str) -> None:
    engine = sqlalchemy.create_engine(mariadb_url)
    with engine.begin() as connection:
        connection.execute(sqlalchemy.text("CREATE TABLE other_tables (id INTEGER)"))
    engine.dispose()

    done = demo("--transport-url", rabbitmq_url, "--database-url", mariadb_url)

    assert done.returncode == 1
    assert "choose an empty one" in done.stderr
    assert tables(mariadb_url) == ["other_tables"]
