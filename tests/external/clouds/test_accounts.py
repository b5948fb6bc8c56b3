"""A cloud with an account for each role on RabbitMQ and MariaDB: each account reaches only what its role needs."""

import pytest
from sqlalchemy import create_engine, exc, text
from sqlalchemy.engine import make_url
from support.processes.forked_cloud import ForkedCloud

from harness.servers import MariaDBServer, RabbitMQServer
from harness.waiting import wait_until
from moorage import errors, ids
from moorage.bus.bus import Bus
from moorage.config import options
from moorage.messages import BuildInstances, DeleteInstance, ListCells, ShowInstance
from moorage.model import Flavor, RequestSpec

SPEC = RequestSpec(project_id="p", user_id="u", flavor=Flavor(vcpus=1, memory_mb=1024, root_gb=1))
PASSWORD = "a-password"
MAIN, CELL = "accounts_main", "accounts_cell"
CELL_UUID = ids.derived("accounts", "cell")
#: By account, the databases that it may read and write: docs/accounts.md.
GRANTS = {"scheduler": (MAIN,), "super": ("accounts_super",), "cell": (CELL,)}
#: By account, the virtual hosts on which it has all permissions; it has none on others.
PERMISSIONS = {"scheduler": (MAIN,), "super": (MAIN, CELL), "cell": (MAIN, CELL), "agent": (CELL,)}


def database_url(mariadb: MariaDBServer, account: str, database: str) -> str:
    return f"mysql+pymysql://{account}:{PASSWORD}@127.0.0.1:{mariadb.port}/{database}?charset=utf8mb4"


def bus_url(rabbitmq: RabbitMQServer, account: str, vhost: str) -> str:
    return f"rabbit://{account}:{PASSWORD}@127.0.0.1:{rabbitmq.port}/{vhost}"


def prepare(mariadb: MariaDBServer, rabbitmq: RabbitMQServer) -> None:
    """Create the databases, the virtual hosts and the accounts."""
    for database in {name for names in GRANTS.values() for name in names}:
        mariadb.create_database(database)
    for account in (*GRANTS, "agent"):
        mariadb.execute(f"CREATE OR REPLACE USER '{account}'@'127.0.0.1' IDENTIFIED BY '{PASSWORD}'")
    for account, databases in GRANTS.items():
        for database in databases:
            mariadb.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {database}.* TO '{account}'@'127.0.0.1'")
    for vhost in (MAIN, CELL):
        rabbitmq.add_vhost(vhost)
    for account, vhosts in PERMISSIONS.items():
        rabbitmq.add_user(account, PASSWORD, vhosts)


def test_a_cloud_works_with_an_account_for_each_role(mariadb: MariaDBServer, rabbitmq: RabbitMQServer) -> None:
    prepare(mariadb, rabbitmq)
    main, super_, cell = mariadb.url(MAIN), mariadb.url("accounts_super"), mariadb.url(CELL)
    # The configuration of the operator, whose account alone may change tables.
    operator = {"conductor": {"connection": super_, "report_interval": 0.5}}
    with ForkedCloud(rabbitmq.url_of(MAIN), main, operator) as cloud:
        cloud.run("db", "upgrade")
        cloud.run(
            "cell", "create", "cell1", "--uuid", CELL_UUID,
            "--transport-url", bus_url(rabbitmq, "cell", CELL),
            "--database-connection", database_url(mariadb, "cell", CELL), "--ddl-connection", cell,
        )  # fmt: skip
        cloud.run("db", "upgrade", "--cell", "cell1", "--ddl-connection", cell)
        # Another database than the recorded one is no place for the cell's tables.
        elsewhere = cloud.run(
            "cell", "set", "cell1", "--database-connection", database_url(mariadb, "super", "accounts_super"),
            "--ddl-connection", cell, check=False,
        )  # fmt: skip
        assert elsewhere.returncode == 1
        assert "--ddl-connection names another database" in elsewhere.stderr
        assert cloud.run("db", "upgrade", "--ddl-connection", cell, check=False).returncode == 1

        def settings(account: str, database: str | None, **more: dict[str, str]) -> dict[str, dict[str, str]]:
            # A role without a database has none in its configuration.
            connection = "" if database is None else database_url(mariadb, account, database)
            vhost = CELL if account == "agent" else MAIN
            return {
                "DEFAULT": {"transport_url": bus_url(rabbitmq, account, vhost)},
                "database": {"connection": connection},
                "conductor": {"connection": "", "report_interval": "0.5"},
                **more,
            }

        own = database_url(mariadb, "super", "accounts_super")
        cloud.start("scheduler", "scheduler", settings=settings("scheduler", MAIN))
        cloud.start(
            "conductor", "conductor",
            settings=settings("super", None, conductor={"connection": own}),
        )  # fmt: skip
        cloud.start("conductor-cell1", "conductor", "--cell", "cell1", settings=settings("cell", None))
        cloud.start(
            "compute", "compute", "--cell", "cell1", "--agent", "rack1", "--fake-hosts", "2",
            settings=settings("agent", None, compute={"cell_uuid": CELL_UUID, "report_interval": "0.5"}),
        )  # fmt: skip
        cloud.wait_for_hosts(2)
        uuid, conductor = ids.fresh(), cloud.client("conductor")

        def becomes(state: str) -> None:
            wait_until(lambda: conductor.call(ShowInstance(instance_uuid=uuid)).state == state, state, 60)

        conductor.call(BuildInstances(request_id=ids.fresh(), request_spec=SPEC, instance_uuids=(uuid,)))
        becomes("active")
        conductor.call(DeleteInstance(request_id=ids.fresh(), instance_uuid=uuid))
        becomes("deleted")
    assert_accounts_reach_nothing_else(mariadb, rabbitmq)


def assert_accounts_reach_nothing_else(mariadb: MariaDBServer, rabbitmq: RabbitMQServer) -> None:
    """Check that an agent cannot use the main bus, and that no account can use a database that is not its own."""
    bus = Bus(options.new({"DEFAULT": {"transport_url": bus_url(rabbitmq, "agent", MAIN)}}))
    try:
        with pytest.raises(errors.MoorageError):
            bus.client("placement", timeout=2.0).call(ListCells())
    finally:
        bus.close()
    for account in (*GRANTS, "agent"):
        for database in {name for names in GRANTS.values() for name in names} - {*GRANTS.get(account, ())}:
            engine = create_engine(make_url(database_url(mariadb, account, database)))
            try:
                with pytest.raises(exc.OperationalError, match="denied"), engine.connect() as connection:
                    connection.execute(text("SELECT 1"))
            finally:
                engine.dispose()
