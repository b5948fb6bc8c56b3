"""Test the log of a broker's alarms: one line at the begin and one at the end, for any number of connections."""

import logging

import pytest
from support.moorage.clock import Clock

from moorage.bus.rabbit.alarms import AlarmLog


def test_an_alarm_that_affects_many_messages_is_logged_once_with_what_to_do(caplog: pytest.LogCaptureFixture) -> None:
    log = AlarmLog(Clock())
    with caplog.at_level(logging.INFO):
        for _ in range(100):
            log.began("broker:5672", "low on memory")
        log.ended("broker:5672")
        log.ended("broker:5672")

    began, over = caplog.messages
    assert "broker:5672" in began
    assert "low on memory" in began
    assert "rabbitmq-diagnostics alarms" in began
    assert over == "broker:5672: the broker's alarm is over"


def test_a_lasting_alarm_is_logged_again_after_a_minute_and_a_new_one_at_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Clock()
    log = AlarmLog(clock)
    log.began("one", "low on disk")
    clock.now = 61.0
    log.began("one", "low on disk")
    log.ended("one")
    log.began("one", "low on disk")
    log.began("other", "low on disk")

    assert len(caplog.messages) == 5


def test_the_end_of_an_unknown_alarm_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    AlarmLog(Clock()).ended("one")

    assert caplog.messages == []
