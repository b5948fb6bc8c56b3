"""Errors by a fault of Moorage or a plug-in."""

from moorage.errors.basis import MoorageError


class InternalError(MoorageError):
    """An unexpected fault: {kind}. The log of the service that answered names it under the request id."""

    code = "moorage.internal"
    kind: str


class BrokenPlugin(InternalError):
    """The {plugin} {name} is broken: {kind}.

    It has raised, or has answered something that is no answer, so nothing is known of any host. Disable it, or mend
    it: the log of the service that answered has its traceback under the request id.
    """

    code = "moorage.broken_plugin"
    plugin: str
    name: str


class SlowPlugin(BrokenPlugin):
    """The {plugin} {name} has not answered within {seconds} seconds.

    `[scheduler] plugin_timeout` is how long it may take over one question. The log of the service that answered says
    where it is. Its thread is left behind, and while several hang in it, it is not asked. Disable it, or mend it and
    start the scheduler anew.
    """

    code = "moorage.broken_plugin.slow"
    kind: str = "SlowPlugin"
    seconds: float


class BadPluginValue(BrokenPlugin):
    """The {plugin} {name} cannot go by what it was given: {reason}.

    An operator has written it, in the configuration or in the metadata of an aggregate, or a driver has reported it:
    mend it there. Until then the plug-in has no answer for any host.
    """

    code = "moorage.broken_plugin.bad_value"
    kind: str = "BadValue"
    reason: str
