"""Jobs of tenants in one process: run later, each tenant in turn, none beyond its share.

@job()                                        a plain or coroutine function; `f.enqueue(order=7)` lets it run later
with Runner(workers=8, max_concurrent=2):     runs them in threads; `async with AsyncRunner():` in the running loop
runner.stop()                                 says what ended, what is returned, what still runs

A job runs for the tenant that enqueued it. Jobs are in memory: they last as long as the process, and what is left at an
orderly shutdown is returned to the caller. docs/jobs.md is the guide.
"""

from bulkhead.jobs.brokers import lane_queue, lane_queues
from bulkhead.jobs.errors import BacklogFull, JobCancelled, JobTimeout, NotTaking
from bulkhead.jobs.handlers import Job, Sender, job, named
from bulkhead.jobs.records import JobRecord, Report, Stats
from bulkhead.jobs.tasks import AsyncRunner
from bulkhead.jobs.threads import Runner

__all__ = [
    "AsyncRunner",
    "BacklogFull",
    "Job",
    "JobCancelled",
    "JobRecord",
    "JobTimeout",
    "NotTaking",
    "Report",
    "Runner",
    "Sender",
    "Stats",
    "job",
    "lane_queue",
    "lane_queues",
    "named",
]
