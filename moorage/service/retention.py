"""How long stored answers and tombstones are kept: what the options say, and never less than what a repeat needs."""

from typing import NamedTuple

from oslo_config import cfg


class Retention(NamedTuple):
    """Seconds, each at least as many as the one before."""

    #: Of an answer, since it was acknowledged.
    acknowledged: float
    #: Of an answer that nobody has acknowledged, since it was stored.
    unacknowledged: float
    #: Of the word that a consumer was deleted for good.
    tombstones: float

    @classmethod
    def of(cls, conf: cfg.ConfigOpts) -> "Retention":
        """Return what a configuration comes to."""
        settings = conf.placement
        # A message is repeated so many times, may lie in the queue for one call's time more, and comes once again from
        # whoever takes the operation over when the lease has run out.
        repeats = conf.rpc.call_timeout * (conf.conductor.max_unanswered_retries + 2)
        acknowledged = max(settings.request_retention, repeats + conf.conductor.lease_seconds)
        unacknowledged = max(settings.unacknowledged_retention, acknowledged)
        return cls(acknowledged, unacknowledged, max(settings.tombstone_retention, unacknowledged))
