"""Reports: the model's provider trees become equal to the reported ones."""

from collections.abc import Collection
from typing import Any

from moorage import errors
from moorage.messages import ProvidersReported, ReportProviders
from moorage.model import ProviderReport
from support.placement_store.model.basis import Model, Provider, apply
from support.placement_store.model.faults import refuse
from support.placement_store.model.providers import in_use, invalid, is_in_use


@apply.register
def report(message: ReportProviders, model: Model, _found: Any) -> ProvidersReported:
    """Create missing providers, change different ones, delete gone ones; new custom names stay even after a refusal."""
    for one in message.providers:
        model.classes |= {name for name in one.inventories if name.startswith("CUSTOM_")}
        model.traits |= {name for name in one.traits or () if name.startswith("CUSTOM_")}
    gone = model.providers.keys() & set(message.gone)
    faults = _undeletable(model, gone)
    there = model.providers.keys() - gone
    for one in message.providers:
        faults += _inconsistent(model, one, there)
        there |= {one.uuid}
    # A name may pass from one provider of the report to another.
    others = model.providers.keys() - gone - {one.uuid for one in message.providers}
    names = {model.providers[uuid].name for uuid in others}
    new = {one.name for one in message.providers if _name(model, one.uuid) != one.name}
    faults += [errors.AlreadyExists(kind="resource provider", name=name) for name in names & new]
    named = [*message.gone, *(name for one in message.providers for name in (one.uuid, one.name))]
    if len(set(named)) < len(named):
        faults.append(errors.InvalidRequest(path="$", reason="reported twice"))
    refuse(faults)
    for uuid in gone:
        del model.providers[uuid]
    for one in message.providers:
        _make(model, one)
    return ProvidersReported(generations={one.uuid: model.providers[one.uuid].generation for one in message.providers})


def _name(model: Model, uuid: str) -> str | None:
    return model.providers[uuid].name if uuid in model.providers else None


def _undeletable(model: Model, gone: Collection[str]) -> list[errors.MoorageError]:
    faults: list[errors.MoorageError] = [errors.ProviderInUse(provider_uuid=u) for u in gone if is_in_use(model, u)]
    return faults + [errors.ProviderHasChildren(provider_uuid=u) for u in gone if set(model.children(u)) - set(gone)]


def _inconsistent(model: Model, one: ProviderReport, there: Collection[str]) -> list[errors.MoorageError]:
    """Return the errors in the description of one provider, except for its name."""
    faults = invalid(one.uuid, one.inventories)
    faults += model.unknown(one.inventories)
    if one.parent_provider_uuid is not None and one.parent_provider_uuid not in there:
        faults.append(errors.ProviderNotFound(kind="resource provider", name=one.parent_provider_uuid))
    if one.uuid not in model.providers:
        return faults + model.missing([one.uuid] if one.generation is not None else [])
    faults += model.stale_generations({one.uuid: [one.generation]}) + in_use(model, one.uuid, one.inventories)
    if one.parent_provider_uuid != model.providers[one.uuid].parent:
        faults.append(errors.InvalidRequest(path="$", reason="no report moves a provider"))
    return faults


def _make(model: Model, one: ProviderReport) -> None:
    provider = model.providers.setdefault(one.uuid, Provider(one.uuid, one.name, one.parent_provider_uuid))
    before = (provider.inventories, provider.traits, provider.aggregates)
    provider.name, provider.inventories = one.name, dict(one.inventories)
    provider.traits = provider.traits if one.traits is None else frozenset(one.traits)
    provider.aggregates = provider.aggregates if one.aggregates is None else frozenset(one.aggregates)
    provider.generation += before != (provider.inventories, provider.traits, provider.aggregates)
