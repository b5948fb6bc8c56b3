"""The scenes in a faulty cloud: servers are built, operated on, and deleted."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from moorage.model import Instance
from support.processes import fault_actions as actions
from support.processes import fault_resources as resources
from support.processes.fault_actions import Action
from support.processes.fault_servers import Server, check, delete
from support.processes.faulty_cloud import HANGING, LEAVING, WORKING, FaultyCloud


@dataclass(frozen=True)
class Scene:
    """Servers that are ordered together: their sizes and places, the operations on them, and other faults meanwhile."""

    name: str
    vcpus: Sequence[int] = (1,)
    #: The zone of the request; null for any.
    zone: str | None = "nova"
    #: The only host that they may be built on.
    host: str | None = None
    #: The operations on each server once it is built, one after another.
    actions: Sequence[Action] = ()
    #: Failpoints of these roles, which are restarted with them.
    meanwhile: Mapping[str, str] = field(default_factory=dict)

    def servers(self, cloud: FaultyCloud) -> list[Server]:
        """Return new servers that no part of the cloud has a record of."""
        return [Server(cloud, vcpus, self.zone, self.host) for vcpus in self.vcpus]

    def loses(self, instance: Instance) -> bool:
        """Return whether a build has failed on its only host, whose agent may have been killed before the guest ran."""
        return self.host == LEAVING and instance.state == "error" and f"{LEAVING}: " in str(instance.reason)


def play(cloud: FaultyCloud, scene: Scene, armed: Mapping[str, str] | None = None) -> list[Server]:
    """Build, use and delete the servers of a scene; fail unless each step ends correctly; return the servers."""
    arm(cloud, scene, armed or {})
    servers = begin(cloud, scene)
    end(cloud, servers)
    return servers


def arm(cloud: FaultyCloud, scene: Scene, armed: Mapping[str, str]) -> None:
    """Restart roles with these failpoints, and roles that have failpoints in the scene."""
    cloud.armed = {
        role: ",".join(filter(None, (scene.meanwhile.get(role), armed.get(role))))
        for role in {**scene.meanwhile, **armed}
    }
    for role in cloud.armed:
        cloud.kill(role)
    for role in list(cloud.armed):
        cloud.start_role(role)


def begin(cloud: FaultyCloud, scene: Scene) -> list[Server]:
    """Build and use the servers of a scene; fail unless each action ends correctly."""
    servers = scene.servers(cloud)
    for server in servers:
        server.order_build()
    built = [server.built() for server in servers]
    check(cloud, servers)
    if any(scene.loses(instance) for instance in built):
        return servers
    assert not scene.actions or all(instance.state == "active" for instance in built), built
    for action in scene.actions:
        for server in servers:
            action(server)
        if not any(server.is_unsettled for server in servers):
            check(cloud, servers)
    return servers


def end(cloud: FaultyCloud, servers: Sequence[Server]) -> None:
    """Delete servers, and fail unless nothing of them is left."""
    delete(servers)
    check(cloud, [])
    for server in servers:
        assert server.migrations() == []


#: The failpoint of a scheduler's answers: the first request is that of the build, the next one comes after it.
_ANSWER = "serve.scheduler.select_destinations.reply"
#: The second request waits while its repetition is refused; the conductor waits for the outcome of the first copy.
_LATE = "serve.scheduler.select_destinations.begin=wait:5@2"
#: Actions after one that has failed.
_AFTERWARDS = (actions.migrate(WORKING[1]), actions.confirm)

BUILDS = (
    # For the three sizes: the third host works; no host that is tried works; no host is large enough.
    Scene("usual", [1, 20, 1000]),
    # Both hosts hang until their attempts time out; then their guests are cleaned up.
    Scene("late", zone="slow"),
    # The scheduler's answer is lost, and for the repetition there is no host: what was claimed must be released.
    Scene("doubted", [1000], meanwhile={"scheduler": f"{_ANSWER}=drop@1"}),
)
MOVES = (
    # Two hosts fail before one works.
    Scene("migrated", host=WORKING[0], actions=[actions.migrate(), actions.confirm]),
    Scene("reverted", host=WORKING[0], actions=[actions.resize(2, WORKING[1]), actions.revert]),
    Scene("resized in place", host=WORKING[0], actions=[actions.resize(2, WORKING[0]), actions.confirm]),
    Scene("reverted in place", host=WORKING[0], actions=[actions.resize(2, WORKING[0]), actions.revert]),
    # Both hosts on which it fits fail.
    Scene("given back", host=WORKING[0], actions=[actions.resize_and_fail(20), *_AFTERWARDS]),
    # No host is large enough.
    Scene("cancelled", host=WORKING[0], actions=[actions.resize_and_fail(1000), *_AFTERWARDS]),
    Scene("timed out", zone=None, host=WORKING[0], actions=[actions.migrate_and_fail(HANGING[0]), *_AFTERWARDS]),
    Scene("live migrated", host=WORKING[0], actions=[actions.live_migrate()]),
    Scene("aborted", zone=None, host=WORKING[0], actions=[actions.live_migrate_and_abort, *_AFTERWARDS]),
    Scene(
        "aborted at once",
        zone=None,
        host=WORKING[0],
        actions=[actions.live_migrate_and_abort_at_once],
        meanwhile={"conductor": "step.move.read.begin=wait:1@1"},
    ),
    # The scene itself kills the agent and starts it again.
    Scene("evacuated", zone=None, host=LEAVING, actions=[actions.evacuate], meanwhile={"leaving agent": ""}),
    Scene("deleted when moved", host=WORKING[0], actions=[actions.migrate(WORKING[1])]),
    Scene("deleted while moving", zone=None, host=WORKING[0], actions=[actions.begin_to_migrate]),
    # Again no host is large enough, and what was claimed must be released.
    Scene(
        "doubted move",
        host=WORKING[0],
        actions=[actions.resize_and_fail(1000), *_AFTERWARDS],
        meanwhile={"scheduler": f"{_ANSWER}=drop@2"},
    ),
    Scene(
        "late move",
        host=WORKING[0],
        actions=[actions.moved_by_a_late_answer],
        meanwhile={"scheduler": _LATE, "conductor": "step.move.fence.begin=wait:6@1"},
    ),
)
OTHERS = (
    Scene("shelved", host=WORKING[0], actions=[actions.shelve, actions.unshelve()]),
    Scene("deleted when shelved", host=WORKING[0], actions=[actions.shelve]),
    Scene(
        "shelved from a dead host",
        zone=None,
        host=LEAVING,
        actions=[actions.shelve_on_a_host_that_dies],
        meanwhile={"leaving agent": ""},
    ),
    # First on a host that never finishes; then on one in another zone.
    Scene(
        "unshelved in vain",
        zone=None,
        host=WORKING[0],
        actions=[actions.shelve, actions.unshelve_and_fail(HANGING[0]), actions.unshelve(WORKING[1])],
    ),
    Scene(
        "unshelved nowhere",
        host=WORKING[0],
        actions=[actions.shelve, actions.unshelve_and_fail(HANGING[0]), actions.unshelve(WORKING[1])],
    ),
    Scene(
        "doubted unshelving",
        host=WORKING[0],
        actions=[actions.shelve, actions.unshelve_and_fail(HANGING[0])],
        meanwhile={"scheduler": f"{_ANSWER}=drop@2"},
    ),
    Scene(
        "late unshelving",
        host=WORKING[0],
        actions=[actions.shelve, actions.unshelved_by_a_late_answer],
        meanwhile={"scheduler": _LATE, "conductor": "step.unshelve.fence.begin=wait:6@1"},
    ),
    Scene("rebuilt", host=WORKING[0], actions=[actions.rebuild]),
    Scene("healed", host=WORKING[0], actions=[resources.lose_and_heal]),
    Scene(
        "attached",
        host=WORKING[0],
        actions=[resources.attach, actions.migrate(WORKING[1]), actions.confirm, resources.detach],
    ),
    # The host fills up before the write. It is not known whether the write was sent before, so it is fenced.
    Scene(
        "attached to a host that fills up",
        host=WORKING[0],
        actions=[resources.attach_to_a_host_that_fills_up],
        meanwhile={"cell conductor": "step.attach.write.begin=wait:3@1,step.attach.write.send.*=drop@1"},
    ),
)
SCENES = {scene.name: scene for scene in BUILDS + MOVES + OTHERS}
