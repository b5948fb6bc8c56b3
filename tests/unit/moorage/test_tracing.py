"""Test that the URL of a collector is checked before a service starts."""

from pathlib import Path

import pytest
from support.moorage.configuration import from_text

from moorage import errors, tracing


@pytest.mark.parametrize("url", ["x", "collector:4318", "grpc://collector:4317", "http://", "http:///v1/traces"])
def test_what_is_no_url_of_a_collector_is_refused(tmp_path: Path, url: str) -> None:
    conf = from_text(tmp_path, f"[tracing]\notlp_endpoint = {url}\n")
    with pytest.raises(errors.ConfigurationError, match=r"\[tracing\] otlp_endpoint .* is no URL with http or https"):
        tracing.configure(conf, "scheduler")


@pytest.mark.parametrize("url", ["", "http://collector:4318/v1/traces", "HTTPS://collector"])
def test_no_url_and_urls_of_collectors_are_accepted(tmp_path: Path, url: str) -> None:
    tracing.require_library(from_text(tmp_path, f"[tracing]\notlp_endpoint = {url}\n"))
