"""Several server operations at the same time on a whole cloud, with a real RabbitMQ and a real MariaDB."""

from concurrent.futures import ThreadPoolExecutor

from support.operations.move_scenario import HOSTS, MoveScenario, plan
from support.operations.room import until_answered

from harness.cloud import RunningCloud
from harness.waiting import wait_until
from moorage import ids
from moorage.messages import ShelveInstance, UnshelveInstance
from moorage.messages.wire import Mutation, R


class PatientScenario(MoveScenario):
    """A stage that repeats orders until they are answered: on a busy machine an answer may come too late."""

    def order(self, message: Mutation[R]) -> R:
        return until_answered(lambda: super(PatientScenario, self).order(message))


def confirmed(stage: MoveScenario, uuid: str) -> None:
    ordered = stage.migrate(uuid)
    stage.becomes(uuid, "moved")
    stage.confirm(uuid)
    stage.ends(ordered, "confirmed")


def reverted(stage: MoveScenario, uuid: str) -> None:
    ordered = stage.resize(uuid)
    stage.becomes(uuid, "moved")
    stage.revert(uuid)
    stage.ends(ordered, "reverted")


def migrated_alive(stage: MoveScenario, uuid: str) -> None:
    stage.ends(stage.live_migrate(uuid), "confirmed")


def shelved_and_back(stage: MoveScenario, uuid: str) -> None:
    stage.order(ShelveInstance(request_id=ids.fresh(), instance_uuid=uuid))
    stage.becomes(uuid, "shelved")
    stage.order(UnshelveInstance(request_id=ids.fresh(), instance_uuid=uuid))
    stage.becomes(uuid, "active")


def test_after_operations_on_many_servers_at_once_each_is_on_exactly_one_host(
    mariadb_url: str, rabbitmq_url: str
) -> None:
    with RunningCloud(plan(hosts=4, database=mariadb_url, transport=rabbitmq_url)) as cloud:
        stage = PatientScenario(cloud)
        uuids = [stage.build() for _ in range(8)]
        stories = [confirmed, reverted, migrated_alive, shelved_and_back] * 2

        with ThreadPoolExecutor(len(uuids)) as threads:
            for each in [threads.submit(story, stage, uuid) for story, uuid in zip(stories, uuids, strict=True)]:
                each.result()

        for uuid in uuids:
            stage.settles(uuid, str(stage.becomes(uuid, "active").host))
        assert set(stage.held()) == set(uuids)
        for uuid in uuids:
            stage.delete(uuid)
            stage.becomes(uuid, "deleted")
        wait_until(lambda: stage.held() == {}, "nothing to be held")
        assert stage.guests() == []
        assert all(stage.used(host) == 0 for host in HOSTS)
