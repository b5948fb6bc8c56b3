"""Check the guests of a cloud at rest: each server has its guests, they run or are stopped, and have what it needs."""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing

from compute.fake.guest_file import GuestFile
from harness.simulation.clients.answers import Broken
from harness.simulation.cloud import SimulatedCloud, uses_pool
from moorage.messages import ShowInstance
from moorage.model import Flavor, Guest, Instance, Migration, Resources

#: A host and an instance.
Key = tuple[str, str]
#: The states of a guest.
STOPPED, RUNS, UNFINISHED = "a stopped one", "one that runs", "an unfinished one"


class GuestChecks:
    """Compares the guests on all hosts with the servers.

    :param show: sends a message to the conductor, and returns the instance.
    """

    def __init__(self, cloud: SimulatedCloud, show: Callable[[ShowInstance], Instance]) -> None:
        self._cloud = cloud
        self._show = show

    def check(self, instances: Sequence[Instance], migrations: Mapping[str, Migration]) -> None:
        """Compare all guests with the servers.

        :raises Broken: a promise is broken.
        """
        found = self._found()
        wanted: dict[Key, list[str]] = defaultdict(list)
        for instance in instances:
            if instance.host is None or instance.state in ("deleted", "shelved"):
                continue
            if instance.state == "moved" and instance.migration_uuid is not None:
                wanted[str(migrations[instance.migration_uuid].source_host), instance.uuid].append(STOPPED)
            key = instance.host, instance.uuid
            # Of an instance in error, nobody may know whether it could be stopped.
            is_stopped = instance.state == "error" and [*found.get(key, ())] == [STOPPED]
            wanted[key].append(STOPPED if is_stopped else RUNS)
        for key in sorted(found.keys() | wanted.keys()):
            self._compare(key, sorted(found.get(key, ())), sorted(wanted.get(key, ())))
        for instance in instances:
            if instance.state == "active" and (guests := found.get((str(instance.host), instance.uuid))):
                self._check_contents(instance, guests[RUNS])

    def _found(self) -> dict[Key, dict[str, Guest]]:
        """Return all guests, by their states; each server has at most one of each state on a host."""
        found: dict[Key, dict[str, Guest]] = defaultdict(dict)
        for cell in self._cloud.cell_names:
            with closing(GuestFile(self._cloud.guests_file(cell))) as file:
                file.open()
                for guest in file.guests():
                    state = RUNS
                    if guest.attempt_id in file.stopped(guest.host):
                        state = STOPPED
                    elif guest.attempt_id in file.unfinished(guest.host):
                        state = UNFINISHED
                    if found[guest.host, guest.instance_uuid].setdefault(state, guest) is not guest:
                        raise Broken(f"promise 2: {guest.host} has two guests of {guest.instance_uuid}, each {state}")
        return found

    def _compare(self, key: Key, found: Sequence[str], wanted: Sequence[str]) -> None:
        if found == wanted:
            return
        if key in self._cloud.lost_guests and not Counter(found) - Counter(wanted):
            return  # each guest that is there is wanted, and the host has lost the others
        promise = 3 if len(found) != len(wanted) else 10
        host, uuid = key
        raise Broken(f"promise {promise}: {host} has these guests of {uuid}: {found}, and should have {wanted}")

    def _check_contents(self, instance: Instance, guest: Guest) -> None:
        """Check that the guest of an active instance has the instance's flavor and image."""
        amounts = amounts_of(instance.flavor)
        if uses_pool(guest.host):
            del amounts["DISK_GB"]
        # A guest that has moved also has the groups that had been attached to the instance by then.
        if not amounts.items() <= guest.resources.items():
            raise Broken(
                f"promise 4: {instance.uuid} needs {amounts} on {guest.host}, and its guest has {guest.resources}"
            )
        spec = self._show(ShowInstance(instance_uuid=instance.uuid, with_request=True)).request_spec
        if spec is None or self._cloud.images[guest.attempt_id] != spec.image.id:
            image = self._cloud.images[guest.attempt_id]
            raise Broken(f"promise 4: the guest of {instance.uuid} has image {image}, of {spec}")


def amounts_of(flavor: Flavor) -> Resources:
    """Return the amounts of a flavor."""
    return {"VCPU": flavor.vcpus, "MEMORY_MB": flavor.memory_mb, "DISK_GB": flavor.root_gb}
