"""Test that the draws of a cloud's month follow the published figures, and keep the number of servers."""

from statistics import fmean

import pytest

from harness.drills.age import JUDGED_FROM, settings
from harness.drills.month import HOURS, MEAN_BATCH, MEAN_LIFETIME, MonthDraws
from moorage.config import options
from moorage.service.stored_requests import Retention

DRAWN = 20_000


@pytest.fixture
def draws() -> MonthDraws:
    return MonthDraws(7)


@pytest.mark.parametrize(("hours", "share"), [(1, 0.636), (2, 0.72), (12, 0.849), (24, 0.894), (96, 0.917)])
def test_lifetimes_have_the_shares_of_the_published_distribution(draws: MonthDraws, hours: float, share: float) -> None:
    lifetimes = [draws.lifetime() for _ in range(DRAWN)]
    assert sum(lifetime <= hours for lifetime in lifetimes) / DRAWN == pytest.approx(share, abs=0.015)
    assert max(lifetimes) <= 90 * 24


def test_the_mean_lifetime_is_that_of_the_published_traces(draws: MonthDraws) -> None:
    assert pytest.approx(60, rel=0.05) == MEAN_LIFETIME
    assert fmean(draws.lifetime() for _ in range(DRAWN)) == pytest.approx(MEAN_LIFETIME, rel=0.1)


def test_batches_have_their_mean_and_are_never_larger_than_ten(draws: MonthDraws) -> None:
    batches = [draws.batch() for _ in range(DRAWN)]
    assert fmean(batches) == pytest.approx(MEAN_BATCH, rel=0.03)
    assert (min(batches), max(batches)) == (1, 10)


def test_a_month_ends_with_as_many_servers_as_it_begins_with(draws: MonthDraws) -> None:
    rate, alive = 2.0, round(2.0 * MEAN_LIFETIME)
    ends = [draws.rest_of_lifetime() for _ in range(alive * 20)]
    left = sum(end > HOURS for end in ends) / 20
    came = [(draws.chance.uniform(0, HOURS), draws.lifetime()) for _ in range(round(rate * HOURS) * 20)]
    left += sum(begin + lifetime > HOURS for begin, lifetime in came) / 20
    assert left == pytest.approx(alive, rel=0.06)


def test_the_same_seed_draws_the_same(draws: MonthDraws) -> None:
    other = MonthDraws(7)
    assert [draws.flavor() for _ in range(50)] == [other.flavor() for _ in range(50)]
    assert draws.pause(3.0) == other.pause(3.0)


@pytest.mark.parametrize("seconds", [JUDGED_FROM, 600.0, 3600.0])
def test_all_retention_periods_end_within_the_first_tenth_of_a_judged_month(seconds: float) -> None:
    conf = options.new(settings(seconds))
    kept = Retention.of(conf)
    longest = max(*kept, conf.conductor.record_retention, conf.conductor.deleted_instance_retention)
    assert longest + conf.service.prune_interval + conf.scheduler.feed_retention / 10 < seconds / 10
