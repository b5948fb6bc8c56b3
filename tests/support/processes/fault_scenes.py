"""The scenes on a faulty cloud: servers are built, operated on, and deleted."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from support.processes import fault_deeds as deeds
from support.processes import fault_resources as resources
from support.processes.fault_deeds import Deed
from support.processes.fault_servers import PATIENCE, Server, check, delete
from support.processes.faulty_cloud import HANGING, LEAVING, WORKING, FaultyCloud


@dataclass(frozen=True)
class Scene:
    """Servers that are ordered together: how large each is, and where; what is done, and befalls others, meanwhile."""

    name: str
    vcpus: Sequence[int] = (1,)
    #: The zone that they are asked for in; null for any.
    zone: str | None = "nova"
    #: The only host that they may be built on.
    host: str | None = None
    #: What is done with each server once it is built, one after the other.
    deeds: Sequence[Deed] = ()
    #: Failpoints of these roles, which are started anew with them.
    meanwhile: Mapping[str, str] = field(default_factory=dict)

    def servers(self, cloud: FaultyCloud, patience: float = PATIENCE) -> list[Server]:
        """Return new servers, of which nobody has heard yet."""
        return [Server(cloud, vcpus, self.zone, self.host, patience) for vcpus in self.vcpus]


def play(cloud: FaultyCloud, scene: Scene, armed: Mapping[str, str] | None = None) -> list[Server]:
    """Have a scene's servers built, used and deleted, and fail unless all is in order after each; return them."""
    arm(cloud, scene, armed or {})
    servers = begin(cloud, scene)
    end(cloud, servers)
    return servers


def arm(cloud: FaultyCloud, scene: Scene, armed: Mapping[str, str]) -> None:
    """Start roles anew with failpoints, and those that something befalls in the scene."""
    cloud.armed = {
        role: ",".join(filter(None, (scene.meanwhile.get(role), armed.get(role))))
        for role in {**scene.meanwhile, **armed}
    }
    for role in cloud.armed:
        cloud.kill(role)
    for role in list(cloud.armed):
        cloud.start_role(role)


def begin(cloud: FaultyCloud, scene: Scene) -> list[Server]:
    """Have a scene's servers built and used; fail unless all is in order after each deed."""
    servers = scene.servers(cloud)
    for server in servers:
        server.order_build()
    for server in servers:
        instance = server.built()
        assert instance.state == "active" or not scene.deeds, instance
    check(cloud, servers)
    for deed in scene.deeds:
        for server in servers:
            deed(server)
        if not any(server.is_unsettled for server in servers):
            check(cloud, servers)
    return servers


def end(cloud: FaultyCloud, servers: Sequence[Server]) -> None:
    """Have servers deleted, and fail unless nothing of them is left."""
    delete(servers)
    check(cloud, [])
    for server in servers:
        assert server.migrations() == []


#: What a scheduler's answers to the first request, that is the build's, and to the one after it are called.
_ANSWER = "serve.scheduler.select_destinations.reply"
#: A request that waits while the same one, sent once more, is refused; and for what came of it the conductor waits.
_LATE = "serve.scheduler.select_destinations.begin=wait:5@2"
#: A second try after what was done in vain.
_AFTERWARDS = (deeds.migrate(WORKING[1]), deeds.confirm)

BUILDS = (
    # The third host works; no host that is tried does; there is no such host.
    Scene("usual", [1, 20, 1000]),
    # Both hosts hang until their attempts time out, and their guests are cleaned up.
    Scene("late", zone="slow"),
    # The scheduler's answer is lost, and at the next asking there is no such host: what was claimed must go.
    Scene("doubted", [1000], meanwhile={"scheduler": f"{_ANSWER}=drop@1"}),
)
MOVES = (
    # Two hosts fail before one works.
    Scene("migrated", host=WORKING[0], deeds=[deeds.migrate(), deeds.confirm]),
    Scene("reverted", host=WORKING[0], deeds=[deeds.resize(2, WORKING[1]), deeds.revert]),
    Scene("resized in place", host=WORKING[0], deeds=[deeds.resize(2, WORKING[0]), deeds.confirm]),
    Scene("reverted in place", host=WORKING[0], deeds=[deeds.resize(2, WORKING[0]), deeds.revert]),
    # Both hosts that it fits on fail.
    Scene("given back", host=WORKING[0], deeds=[deeds.resize_in_vain(20), *_AFTERWARDS]),
    # There is no such host.
    Scene("cancelled", host=WORKING[0], deeds=[deeds.resize_in_vain(1000), *_AFTERWARDS]),
    Scene("timed out", zone=None, host=WORKING[0], deeds=[deeds.migrate_in_vain(HANGING[0]), *_AFTERWARDS]),
    Scene("live migrated", host=WORKING[0], deeds=[deeds.live_migrate()]),
    Scene("aborted", zone=None, host=WORKING[0], deeds=[deeds.live_migrate_and_abort, *_AFTERWARDS]),
    Scene(
        "aborted at once",
        zone=None,
        host=WORKING[0],
        deeds=[deeds.live_migrate_and_abort_at_once],
        meanwhile={"conductor": "step.move.read.begin=wait:1@1"},
    ),
    # The agent is killed and started again in the scene itself.
    Scene("evacuated", zone=None, host=LEAVING, deeds=[deeds.evacuate], meanwhile={"leaving agent": ""}),
    Scene("deleted when moved", host=WORKING[0], deeds=[deeds.migrate(WORKING[1])]),
    Scene("deleted while moving", zone=None, host=WORKING[0], deeds=[deeds.begin_to_migrate]),
    # Once more there is no such host, and what was claimed must go.
    Scene(
        "doubted move",
        host=WORKING[0],
        deeds=[deeds.resize_in_vain(1000), *_AFTERWARDS],
        meanwhile={"scheduler": f"{_ANSWER}=drop@2"},
    ),
    Scene(
        "late move",
        host=WORKING[0],
        deeds=[deeds.moved_by_a_late_answer],
        meanwhile={"scheduler": _LATE, "conductor": "step.move.fence.begin=wait:6@1"},
    ),
)
OTHERS = (
    Scene("shelved", host=WORKING[0], deeds=[deeds.shelve, deeds.unshelve()]),
    Scene("deleted when shelved", host=WORKING[0], deeds=[deeds.shelve]),
    Scene(
        "shelved from a dead host",
        zone=None,
        host=LEAVING,
        deeds=[deeds.shelve_on_a_host_that_dies],
        meanwhile={"leaving agent": ""},
    ),
    # On a host that never finishes; then on one in another zone.
    Scene(
        "unshelved in vain",
        zone=None,
        host=WORKING[0],
        deeds=[deeds.shelve, deeds.unshelve_in_vain(HANGING[0]), deeds.unshelve(WORKING[1])],
    ),
    Scene(
        "unshelved nowhere",
        host=WORKING[0],
        deeds=[deeds.shelve, deeds.unshelve_in_vain(HANGING[0]), deeds.unshelve(WORKING[1])],
    ),
    Scene(
        "doubted unshelving",
        host=WORKING[0],
        deeds=[deeds.shelve, deeds.unshelve_in_vain(HANGING[0])],
        meanwhile={"scheduler": f"{_ANSWER}=drop@2"},
    ),
    Scene(
        "late unshelving",
        host=WORKING[0],
        deeds=[deeds.shelve, deeds.unshelved_by_a_late_answer],
        meanwhile={"scheduler": _LATE, "conductor": "step.unshelve.fence.begin=wait:6@1"},
    ),
    Scene("rebuilt", host=WORKING[0], deeds=[deeds.rebuild]),
    Scene("healed", host=WORKING[0], deeds=[resources.lose_and_heal]),
    Scene(
        "attached",
        host=WORKING[0],
        deeds=[resources.attach, deeds.migrate(WORKING[1]), deeds.confirm, resources.detach],
    ),
    # The host fills up before the write; whether that was sent before is not known, so it is fenced.
    Scene(
        "attached to a host that fills up",
        host=WORKING[0],
        deeds=[resources.attach_to_a_host_that_fills_up],
        meanwhile={"cell conductor": "step.attach.write.begin=wait:3@1,step.attach.write.send.*=drop@1"},
    ),
)
SCENES = {scene.name: scene for scene in BUILDS + MOVES + OTHERS}
