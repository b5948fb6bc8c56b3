"""The request filter for dedicated CPUs (``PCPU`` instead of ``VCPU``) and for NUMA nodes (a resource group for each).

The candidate search then chooses the host's NUMA nodes for the server, and the claim stores this choice.
"""

import re

import os_traits
from os_resource_classes import MEMORY_MB, PCPU, VCPU

from filters.extra_specs import wrong
from filters.requests.cpu_settings import CpuSettings, cpu_settings
from filters.requests.merging import changed, with_amounts, with_groups, with_more
from moorage.model import RequestSpec, ResourceGroup
from moorage.plugin import Cloud, RequestFilter

#: The suffix of a NUMA node's group, followed by the node's number: an operator's ``same_subtree`` may name it.
NUMA_GROUP = "_NUMA"


class DedicatedCpusRequestFilter(RequestFilter):
    """Translates ``hw:cpu_policy`` and ``hw:numa_nodes`` and the like into resource classes, groups and traits.

    Each of a server's NUMA nodes is served by a different provider with the trait HW_NUMA_ROOT.
    """

    def narrow(self, request: RequestSpec, cloud: Cloud) -> RequestSpec:  # noqa: ARG002
        """Return the request with the CPUs to claim, and with the memory to claim of each NUMA node.

        :raises InvalidRequest: a setting is invalid, or contradicts another one.
        """
        settings = cpu_settings(request)
        if settings is None:
            return request
        if settings.dedicated or settings.nodes:
            _refuse_amounts(request, settings)
        if settings.threads == "require":
            request = changed(request, root_required=with_more(request.root_required, [_HYPERTHREADING]))
        elif settings.threads == "isolate":
            request = changed(request, root_forbidden=with_more(request.root_forbidden, [_HYPERTHREADING]))
        if settings.nodes:
            return _on_nodes(request, settings)
        if settings.dedicated:
            return with_amounts(
                request, _cpus(settings, frozenset(range(request.flavor.vcpus)), first=True), settings.path
            )
        return request


# Nova reports it on the root of a host, and so do drivers that use Nova's traits.
_HYPERTHREADING: str = os_traits.HW_CPU_HYPERTHREADING


def _on_nodes(request: RequestSpec, settings: CpuSettings) -> RequestSpec:
    """Return the request with a group for each NUMA node; the unsuffixed group loses the amounts of these groups."""
    groups = {}
    for number, (cpus, memory_mb) in enumerate(settings.nodes):
        amounts = {name: amount for name, amount in _cpus(settings, cpus, first=number == 0).items() if amount}
        groups[f"{NUMA_GROUP}{number}"] = ResourceGroup(
            resources={**amounts, MEMORY_MB: memory_mb}, required=(os_traits.HW_NUMA_ROOT,)
        )
    request = with_amounts(request, {VCPU: 0, MEMORY_MB: 0}, settings.path)
    request = with_groups(request, groups, dict.fromkeys(groups, settings.path))
    return changed(request, apart=with_more(request.apart, [tuple(groups)])) if len(groups) > 1 else request


def _cpus(settings: CpuSettings, cpus: frozenset[int], *, first: bool) -> dict[str, int]:
    """Return the amounts for some of a server's CPUs by resource class.

    :param first: whether to add the dedicated CPU of the emulator threads, if there is one.
    """
    dedicated = len(cpus & settings.dedicated)
    emulator = 1 if first and settings.isolated_emulator else 0
    return {VCPU: len(cpus) - dedicated, **({PCPU: dedicated + emulator} if dedicated + emulator else {})}


def _refuse_amounts(request: RequestSpec, settings: CpuSettings) -> None:
    """Refuse explicit amounts of the classes that these settings translate into (as Nova does for CPUs)."""
    classes = f"{VCPU}|{PCPU}|{MEMORY_MB}" if settings.nodes else f"{VCPU}|{PCPU}"
    for key in request.flavor.extra_specs:
        if re.fullmatch(rf"resources[^:]*:({classes})", key):
            raise wrong(key, f"{settings.path} requests this class already: leave out one of the two")
