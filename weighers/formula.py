"""The base class of weighers that use the same formula for one host and for all hosts."""

from abc import abstractmethod

import numpy as np

from moorage.model import RequestSpec
from moorage.plugin import Amount, FloatArray, Host, HostView, Weigher


class FormulaWeigher(Weigher):
    """Weighs a host by one formula; hosts of a request that does not concern the weigher score 0."""

    @abstractmethod
    def score(self, hosts: Host | HostView, request: RequestSpec) -> Amount:
        """Return the score of one host, or of each host of the view of all; a number is the score of all."""

    def weigh(self, host: Host, request: RequestSpec) -> float:
        """Return the score of ``host``."""
        return float(self.score(host, request)) if self.concerns(request) else 0.0

    def scores(self, view: HostView, request: RequestSpec) -> FloatArray:
        """Return the score of each row."""
        scores = np.asarray(self.score(view, request) if self.concerns(request) else 0.0, dtype=np.float64)
        return scores if scores.ndim else np.full(len(view), scores)
