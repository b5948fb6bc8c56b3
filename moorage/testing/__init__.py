"""Test kit for operators' plug-ins: builders, random clouds, and the conformance checks for every plug-in.

It needs no test runner and no service: a check raises ``AssertionError`` with a sentence about the fault.
"""

from moorage.testing.builders import candidate as candidate
from moorage.testing.builders import cloud as cloud
from moorage.testing.builders import host as host
from moorage.testing.builders import inventory as inventory
from moorage.testing.builders import request as request
from moorage.testing.builders import settings_of as settings_of
from moorage.testing.builders import view as view
from moorage.testing.conformance import answers_of as answers_of
from moorage.testing.conformance import check_filter as check_filter
from moorage.testing.conformance import check_request_filter as check_request_filter
from moorage.testing.conformance import check_weigher as check_weigher
from moorage.testing.conformance import scores_of as scores_of
from moorage.testing.conformance import unchanged as unchanged
from moorage.testing.hosts import ListedHosts as ListedHosts
from moorage.testing.samples import Sample as Sample
from moorage.testing.samples import Words as Words
from moorage.testing.samples import samples as samples
