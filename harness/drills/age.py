"""The drill in which a small cloud ages by a month in minutes: nothing in it may grow with its age."""

import time

from harness.arguments import Servers
from harness.cloud import Settings
from harness.drills.cloud import DrillCloud, Size
from harness.drills.measures import Measures
from harness.drills.month import HOURS
from harness.drills.month_work import MonthWork
from harness.drills.report import Arguments, Report, Say
from moorage.config import options

#: The number of parts of the month, how many of them are warm-up, and the number of samples of each part.
_PARTS, _WARM_UP, _SAMPLES = 10, 1, 6
#: The longest retention, as a share of the month. If records were kept for the whole month, they would grow for a
#: month. So all retentions are shortened by the same factor until the longest one ends within the warm-up.
_KEPT = 0.085
#: Retentions with their groups. Stored answers are kept at least until no repeat of their requests can arrive, which is
#: 32 s with the time-outs below.
_RETENTIONS = (
    ("placement", "request_retention"),
    ("placement", "unacknowledged_retention"),
    ("placement", "tombstone_retention"),
    ("conductor", "record_retention"),
    ("conductor", "deleted_instance_retention"),
)
_CALL_SECONDS, _LEASE_SECONDS, _BACKOFF_SECONDS, _LEAST_KEPT = 2.0, 5.0, 0.01, 32.0
#: The shortest month, in seconds, that is judged for growth. In a shorter one the minimum retention exceeds the
#: warm-up.
JUDGED_FROM = _LEAST_KEPT / _KEPT * 1.1
#: About ten hosts with twice the room that is used on average: if a third of a cell fails, the rest has room for it.
_SIZE = Size(hosts=4, room=48, memory_mb=48 * 4096, standby_hosts=2)
_FAIL_RATE = 0.02


def settings(seconds: float) -> Settings:
    """Return the options of a cloud whose month lasts for ``seconds``: its retentions shrink like its time."""
    defaults = options.new({})
    longest = max(defaults[group][name] for group, name in _RETENTIONS)
    scaled: dict[str, dict[str, float]] = {"placement": {}, "conductor": {}}
    for group, name in _RETENTIONS:
        scaled[group][name] = defaults[group][name] / longest * _KEPT * seconds
    scaled["conductor"] |= {
        "lease_seconds": _LEASE_SECONDS,
        "retry_backoff": _BACKOFF_SECONDS,
        "delete_patience": 1.0,
        "housekeeping_interval": 0.5,
        "failed_build_half_life": max(1.0, defaults.conductor.failed_build_half_life * seconds / (HOURS * 3600)),
    }
    feed = max(2.0, _KEPT * seconds / 2)
    return {
        **scaled,
        "rpc": {"call_timeout": _CALL_SECONDS},
        "service": {"prune_interval": max(0.25, seconds / 200)},
        "scheduler": {"feed_retention": feed, "view_compare_interval": min(5.0, feed)},
    }


def run(servers: Servers, given: Arguments, say: Say) -> Report:
    """Let a cloud of processes live for a month, and find what has grown after the first tenth."""
    say(f"starting eleven processes; an hour of the cloud lasts for {given.seconds / HOURS:.3g} s")
    size, own = _SIZE, settings(given.seconds)
    with DrillCloud(servers, given.seed, proxied=False, fail_rate=_FAIL_RATE, size=size, settings=own) as cloud:
        measures = Measures(cloud)
        with MonthWork(cloud, given.clients, given.seed, given.seconds) as work:
            say(f"{work.alive} servers are there; the month begins")
            _live_through(work, measures, given.seconds, say)
        is_judged = given.seconds >= JUDGED_FROM
        if not is_judged:
            say(f"growth is not judged: a month of less than {JUDGED_FROM:.0f} s is too short for it")
        grown = measures.grown(_WARM_UP) if is_judged else []
        return work.judged({"is_growth_judged": is_judged}, grown, say, measures.parts)


def _live_through(work: MonthWork, measures: Measures, seconds: float, say: Say) -> None:
    began = time.monotonic()
    for part in range(_PARTS):
        for sample in range(_SAMPLES):
            end = began + seconds * (part + (sample + 1) / _SAMPLES) / _PARTS
            if not work.wait(end - time.monotonic()):
                return
            measures.sample()
        measures.end_part(work.take_seconds())
        say(f"day {(part + 1) * 30 // _PARTS}: {work.alive} servers; {_brief(measures)}")


def _brief(measures: Measures) -> str:
    newest = {name: figures[-1] for name, figures in measures.parts.items()}
    rows = sum(figure for name, figure in newest.items() if name.startswith("rows"))
    return f"{measures.total_mb:.0f} MB in all, {rows:.0f} rows, {newest.get('seconds build', 0.0):.2f} s a build"
