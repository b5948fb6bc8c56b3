"""Errors of the installation: the operator must repair it before a service starts."""

from moorage.errors.basis import MoorageError


class ConfigurationError(MoorageError, code="moorage.configuration"):
    """The configuration is wrong: {reason}."""

    reason: str


class UnknownPlugin(ConfigurationError, code="moorage.unknown_plugin"):
    """There is no {kind} named {name}; the known ones are: {known}."""

    kind: str
    name: str
    known: str
    reason: str = ""


class ServiceNameTaken(ConfigurationError, code="moorage.service_name_taken"):
    """Another service named {name} answers on {topic}: stop it, or give this one a name of its own.

    The default name is the host name: if several services of a kind run on one machine, give them different names with
    `--name`, and agents with `--agent`. A service that was killed does not keep its name. For one that hangs, the new
    service waits ten seconds.
    """

    name: str
    topic: str
    reason: str = ""


class SchemaMismatch(ConfigurationError, code="moorage.schema_mismatch"):
    """The {schema} schema is at revision {found} and this version needs {needed}: run `moorage db upgrade`."""

    schema: str
    found: str
    needed: str
    reason: str = ""


class SchemaTooNew(SchemaMismatch, code="moorage.schema_too_new"):
    """The {schema} schema is at revision {found} and works with code of {oldest} or newer; this version is {needed}.

    A newer release has upgraded the database: start that release instead. Nothing was changed.
    """

    oldest: str
