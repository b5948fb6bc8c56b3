"""SIGHUP lets a scheduler process read its configuration again."""

import signal
from pathlib import Path

from support.databases import migrated
from support.processes.forked_cloud import ForkedCloud

from harness.waiting import wait_until
from moorage import errors
from moorage.messages import ShowPolicy
from moorage.model.inspection import PolicyState
from placement_store.schema import MAIN


def test_sighup_reloads_the_policy_of_a_process_and_an_invalid_policy_leaves_the_old_one(
    rabbitmq_url: str, tmp_path: Path
) -> None:
    with ForkedCloud(rabbitmq_url, migrated.sqlite(tmp_path / "main.sqlite", MAIN)) as cloud:
        client = cloud.client("scheduler", timeout=5.0)

        def policy() -> PolicyState | None:
            try:
                return client.call(ShowPolicy())
            except errors.Unavailable:
                return None

        def reload(options: str) -> None:
            with cloud.config_file.open("a") as file:
                file.write(f"\n[scheduler]\n{options}\n")
            cloud.processes["scheduler"].send_signal(signal.SIGHUP)

        cloud.start("scheduler", "scheduler", "--name", "one")
        wait_until(lambda: policy() is not None, "the scheduler to answer")
        reload("host_subset_size = 4")
        wait_until(lambda: (now := policy()) is not None and now.host_subset_size == 4, "the policy to be loaded")
        loaded = policy()
        reload("enabled_filters = moonshine")
        wait_until(lambda: (now := policy()) is not None and now.refused is not None, "the policy to be refused")
        after = policy()
        assert loaded is not None
        assert after is not None
        assert after.refused is not None
        assert "moonshine" in after.refused.reason
        assert (after.fingerprint, after.filters) == (loaded.fingerprint, loaded.filters)
        shown = cloud.run("scheduler", "config", "show", "-f", "json")
        assert loaded.fingerprint in shown.stdout
        # oslo.config itself would end the process at a wrong value of an option that the library also has on a command
        # line.
        reload("[DEFAULT]\ndebug = perhaps")
        wait_until(lambda: (now := policy()) is not None and "debug" in str(now.refused), "debug to be refused")
        lines = [line for line in cloud.log("scheduler").splitlines() if "is refused, and policy" in line]
        assert len(lines) == 2
        assert all("ERROR" in line for line in lines)
        assert cloud.stop("scheduler") == 0


def test_the_workers_of_a_scheduler_are_separate_schedulers_that_reload_and_stop_together(
    rabbitmq_url: str, tmp_path: Path
) -> None:
    with ForkedCloud(rabbitmq_url, migrated.sqlite(tmp_path / "main.sqlite", MAIN)) as cloud:

        def policy(name: str) -> PolicyState | None:
            try:
                return cloud.client("scheduler", timeout=5.0, server=name).call(ShowPolicy())
            except errors.Unavailable:
                return None

        def subset_sizes() -> list[int | None]:
            policies = [policy("one-1"), policy("one-2")]
            return [None if found is None else found.host_subset_size for found in policies]

        with cloud.config_file.open("a") as file:
            file.write("\n[scheduler]\nworkers = 2\n")
        cloud.start("scheduler", "scheduler", "--name", "one")
        wait_until(lambda: subset_sizes() == [1, 1], "both workers to answer")
        with cloud.config_file.open("a") as file:
            file.write("host_subset_size = 4\n")
        cloud.processes["scheduler"].send_signal(signal.SIGHUP)
        wait_until(lambda: subset_sizes() == [4, 4], "both workers to load the policy")
        assert cloud.stop("scheduler") == 0
        stopped = [line for line in cloud.log("scheduler").splitlines() if line.endswith("Stopped")]
        assert [sum(f"scheduler.one-{number}" in line for line in stopped) for number in (1, 2)] == [1, 1], stopped
