"""What a scheduler answers who wants to know that it decides by nothing older than what the store has now."""

from moorage.bus.bus import serves
from moorage.messages import CatchUpView, ViewCaughtUp
from scheduler.decide.environment import InFlight
from scheduler.view.follower import Follower


class ViewCatchUp:
    """The endpoint of `catch_up_view`.

    :param decisions: those that are under way.
    """

    def __init__(self, follower: Follower, decisions: InFlight) -> None:
        self._follower = follower
        self._decisions = decisions

    @serves(CatchUpView)
    def catch_up_view(self, message: CatchUpView) -> ViewCaughtUp:
        """Answer :class:`~moorage.messages.CatchUpView`.

        :raises StoreUnavailable: the database cannot be reached.
        """
        # By comparing everything: the feed may miss a change whose transaction took long.
        self._follower.catch_up(self._follower.now())
        # Only after that: who begins from now on sees what has been read.
        return ViewCaughtUp(undecided=self._decisions.wait(message.patience))
