"""The scenario of the design: a tenant floods requests and jobs, three quiet ones hardly notice.

An upstream of 8 slots and 10 ms; the noisy tenant sends 1,000 requests a second and leaves 300 jobs of 50 ms; each
quiet one sends a request every 50 ms and leaves a 50 ms job every second; 60 s of virtual time; 4 workers on 4 lanes,
2 for each tenant; caps of 4 requests and 2 jobs.
"""

from __future__ import annotations

from functools import partial

import pytest
from jobs.service import JOB_CAP, QUIET, Service

SECONDS = 60.0
REQUEST_P99, JOB_P99 = 0.030, 0.150


def scenario(*, limits: bool, bursts: int = 1, seed: int = 1) -> Service:
    service = Service(limits=limits, seed=seed)
    service.arrivals(0.001, SECONDS, partial(service.request, "noisy"))
    for burst in range(bursts):
        for _ in range(300):
            service.at(burst * SECONDS / bursts, partial(service.job, "noisy"))
    for tenant in QUIET:
        service.arrivals(0.050, SECONDS, partial(service.request, tenant))
        service.arrivals(1.0, SECONDS, partial(service.job, tenant))
    service.run_for(SECONDS)
    return service


@pytest.mark.no_cover
@pytest.mark.parametrize("bursts", [1, 8])
def test_quiet_tenants_hardly_notice_a_noisy_one(bursts: int) -> None:
    """Known fault 76. With 8 bursts the noisy tenant has jobs waiting all the time."""
    service = scenario(limits=True, bursts=bursts)
    assert service.quiet_request_p99() <= REQUEST_P99
    assert service.quiet_job_p99() <= JOB_P99
    assert not any(service.refused.get(tenant) for tenant in QUIET)
    assert service.refused["noisy"] > 10_000
    assert service.most_at_once["noisy"] == JOB_CAP
    assert len(service.jobs["noisy"]) >= 300


@pytest.mark.no_cover
def test_without_limits_they_do() -> None:
    """The control run: the same arrivals, one line for all."""
    service = scenario(limits=False)
    assert service.quiet_request_p99() > REQUEST_P99
    assert service.quiet_job_p99() > JOB_P99
    assert not service.refused
