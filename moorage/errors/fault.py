"""Errors caused by Moorage itself or by a plug-in."""

from moorage.errors.basis import MoorageError


class InternalError(MoorageError, code="moorage.internal"):
    """An unexpected fault: {kind}. The log of the answering service has the details under the request id."""

    kind: str


class BrokenPlugin(InternalError, code="moorage.broken_plugin"):
    """The {plugin} {name} is broken: {kind}.

    It has raised an exception or returned an invalid result, so that nothing is known about any host. Disable it or
    repair it: the log of the answering service has the traceback under the request id.
    """

    plugin: str
    name: str


class SlowPlugin(BrokenPlugin, code="moorage.broken_plugin.slow"):
    """The {plugin} {name} has not answered within {seconds} seconds.

    `[scheduler] plugin_timeout` limits the time of one call. The log of the answering service shows where the plug-in
    is. Its thread cannot be ended, and while several of its threads hang, the plug-in is not called. Disable it, or
    repair it and restart the scheduler.
    """

    kind: str = "SlowPlugin"
    seconds: float


class BadPluginValue(BrokenPlugin, code="moorage.broken_plugin.bad_value"):
    """The {plugin} {name} cannot use a value that it was given: {reason}.

    The value comes from an operator (in the configuration, or in the metadata of an aggregate) or from the report of a
    driver: correct it there. Until then the plug-in has no answer for any host.
    """

    kind: str = "BadValue"
    reason: str
