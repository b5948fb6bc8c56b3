"""Instances by name or uuid, as operators type them."""

from moorage import errors, ids
from moorage.cli import lists
from moorage.cli.lists import MessageClient
from moorage.messages import ListInstances

#: The most uuids that a refusal lists. Arbitrary: more would not fit on a screen.
_MOST = 10


def instance_uuid(conductor: MessageClient, given: str) -> str:
    """Return the uuid of the existing instance with this name; a uuid is returned unchanged, without a call.

    :raises InstanceNotFound: no instance has this name.
    :raises InvalidRequest: several instances have this name.
    """
    if uuid := ids.canonical(given):
        return uuid
    found = [instance.uuid for instance in lists.instances(conductor, ListInstances(name=given))]
    if not found:
        raise errors.InstanceNotFound(kind="instance", name=given)
    if len(found) > 1:
        more = ", …" if len(found) > _MOST else ""
        reason = f"{len(found)} instances have this name: {', '.join(found[:_MOST])}{more}"
        raise errors.InvalidRequest(path=given, reason=reason)
    return found[0]
