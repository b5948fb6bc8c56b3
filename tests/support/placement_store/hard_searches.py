"""Requests for candidates that are hard to search: packing problems that no bound shows to be impossible."""

from moorage.model import Inventory, ResourceGroup, ResourceRequest

#: The devices of a host: all have different room, so that none is interchangeable with another.
DEVICES = {f"device{number}": Inventory(total=20 + number) for number in range(16)}
#: The traits that the groups require; each device has one of them.
ALL_TRAITS = ("HW_CPU_X86_AVX", "HW_CPU_X86_AVX2", "HW_CPU_X86_SSE")


def traits_of(device: int) -> tuple[str, ...]:
    """Return the traits of a device, by its number."""
    return (ALL_TRAITS[device % 3],)


#: Groups that together take nearly all the room.
REQUEST = ResourceRequest(
    groups={
        f"_{number}": ResourceGroup(
            resources={"VGPU": 7 + number % 5}, any_of=((ALL_TRAITS[number % 3], ALL_TRAITS[(number + 1) % 3]),)
        )
        for number in range(47)
    },
    group_policy="none",
)


def query() -> str:
    """Return the same request as the query of the HTTP API."""
    parts = ["group_policy=none"]
    for suffix, group in REQUEST.groups.items():
        parts.append(f"resources{suffix}=VGPU:{group.resources['VGPU']}")
        parts.append(f"required{suffix}=in:{','.join(group.any_of[0])}")
    return "&".join(parts)
