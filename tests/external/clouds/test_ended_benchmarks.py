"""A benchmark that is terminated leaves no process and no table behind."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest
import sqlalchemy as sa

from harness.waiting import wait_until


@contextmanager
def benchmark(transport_url: str, database_url: str) -> Iterator[tuple[psutil.Process, list[psutil.Process]]]:
    """Run a benchmark, and yield it with its services once they have started."""
    words = ["--transport-url", transport_url, "--database-url", database_url, "--hosts", "4", "--seconds", "600"]
    command = [sys.executable, "-m", "moorage.cli.shell", "bench", "select", *words]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as begun:
        process = psutil.Process(begun.pid)
        services: list[psutil.Process] = []
        try:
            # The scheduler, two conductors, the agent, the clients, and the resource tracker of the standard library.
            wait_until(lambda: len(process.children(recursive=True)) > 4, "the services of a benchmark", 60.0)
            services = process.children(recursive=True)
            yield process, services
        finally:
            for one in [process, *services]:
                if one.is_running():
                    one.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_benchmark_that_is_terminated_stops_its_services_and_drops_its_tables(
    rabbitmq_url: str, mariadb_url: str, number: signal.Signals
) -> None:
    with benchmark(rabbitmq_url, mariadb_url) as (process, services):
        process.send_signal(number)
        assert process.wait(60) == 128 + number
        wait_until(lambda: not any(one.is_running() for one in services), "the services to end", 20.0)
    engine = sa.create_engine(mariadb_url)
    assert sa.inspect(engine).get_table_names() == []
    engine.dispose()
