"""A cloud of fake hosts in this process goes by the filter; see ``docs/harness.md``."""

import pytest

from moorage import ids
from moorage.errors import NoValidHost
from moorage.messages import SelectDestinations
from moorage.model import Flavor, RequestSpec

pytestmark = pytest.mark.moorage_cloud(
    hosts=3,
    settings={
        "scheduler": {"enabled_filters": ["+rack"]},
        "filters": {"rack_attribute": "cabinet"},
        "fake_driver": {"attributes": ['{"cabinet": "c1"}', 'cell1-host-0002: {"cabinet": "c2"}']},
    },
)


def selected(cloud, **hints):
    spec = RequestSpec(project_id="p", user_id="u", flavor=Flavor(vcpus=1, memory_mb=512), scheduler_hints=hints)
    order = SelectDestinations(
        request_id=ids.fresh(), request_spec=spec, instance_uuids=(ids.fresh(),), num_alternates=2
    )
    [[claimed, *alternates]] = cloud.client("scheduler").call(order)
    return [claimed.service_host, *(one.service_host for one in alternates)]


def test_the_hint_leads_into_the_cabinet(moorage_cloud):
    assert selected(moorage_cloud, rack="c2") == ["cell1-host-0002"]
    assert sorted(selected(moorage_cloud, rack="c1")) == ["cell1-host-0001", "cell1-host-0003"]
    assert len(selected(moorage_cloud)) == 3


def test_a_cabinet_that_is_not_there_is_the_reason_of_a_refusal(moorage_cloud):
    with pytest.raises(NoValidHost, match="in another rack"):
        selected(moorage_cloud, rack="c9")
