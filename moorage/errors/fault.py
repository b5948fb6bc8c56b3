"""A fault of ours."""

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
