"""What is known of a job, and what a runner says of itself. Data only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from bulkhead.errors import ConfigurationError
from bulkhead.jobs.arguments import from_json
from bulkhead.log_lines import without_secrets
from bulkhead.option_rows import MAXIMUM_COUNT, MAXIMUM_SECONDS
from bulkhead.tenancy import text_fault

if TYPE_CHECKING:
    from bulkhead.jobs.handlers import Job

Outcome = Literal["success", "retry", "dead", "returned"]
OUTCOMES: tuple[Outcome, ...] = ("success", "retry", "dead", "returned")
"""How an attempt ended: well, badly and to be tried again, badly for good, or given back by a shutdown."""


class JobRecord(NamedTuple):
    """A job as text and numbers: for `restore`, for lists, to be written down as JSON (`record._asdict()`)."""

    id: str
    name: str
    queue: str
    tenant: str | None
    arguments: Mapping[str, Any]
    attempt: int
    """Attempts so far, one that runs included."""
    max_attempts: int
    delay: float
    """Seconds until it may run; 0 = now."""
    last_error: str | None
    """Class and first line of what the last attempt failed with, without what looks like a credential."""

    def __repr__(self) -> str:
        return f"<job {self.name!r} {self.id}>"  # its arguments are request data


class Report(NamedTuple):
    """What `stop()` says."""

    finished: int
    """Jobs that ended after the shutdown began."""
    returned: list[JobRecord]
    """Jobs that are the caller's now: those that waited, and those that were cancelled."""
    running: list[JobRecord]
    """Jobs that could not be cancelled and still run, in threads; and the one that called `stop()`."""


class Stats(NamedTuple):
    """Numbers of a runner, now."""

    waiting: int
    """Due, in line."""
    later: int
    """Not due: delayed, or between two attempts."""
    running: int
    overdue: int
    """Of these, over their timeout, in threads."""
    dead: int
    unknown: dict[str, int]
    """Waiting for a handler: name -> jobs."""
    finished: dict[str, int]
    """Attempts by outcome so far."""
    idle: int
    """Workers without a job."""


class Entry:
    """A job that is kept."""

    __slots__ = (
        "arguments",
        "attempt",
        "cap",
        "due",
        "error",
        "id",
        "max_attempts",
        "name",
        "queue",
        "since",
        "tenant",
    )

    def __init__(
        self, identity: str, name: str, queue: str, tenant: str | None, arguments: str, max_attempts: int
    ) -> None:
        self.id, self.name, self.queue, self.tenant = identity, name, queue, tenant
        self.arguments, self.max_attempts = arguments, max_attempts
        self.attempt = 0
        self.error: str | None = None
        self.due = self.since = 0.0
        """When it may run; when it was kept (by the runner's clock)."""
        self.cap = 0


class Run:
    """An attempt: the job, its handler, and what the one who runs it has to know."""

    __slots__ = ("began", "cancel", "entry", "given_up", "job", "reported", "started")

    def __init__(self, entry: Entry, job: Job[..., Any], now: float) -> None:
        self.entry, self.job, self.began = entry, job, now
        self.started = False
        self.reported = False
        """Over its timeout, and the log says so."""
        self.given_up = False
        """A shutdown cancels it: it goes back, and this was no attempt."""
        self.cancel: Any = None
        """Ends it where that can be done from outside; None = it runs in a thread."""


def record(entry: Entry, now: float | None = None) -> JobRecord:
    """The job as data."""
    return JobRecord(
        entry.id,
        entry.name,
        entry.queue,
        entry.tenant,
        from_json(entry.arguments),
        entry.attempt,
        entry.max_attempts,
        0.0 if now is None else min(max(0.0, entry.due - now), MAXIMUM_SECONDS),
        entry.error,
    )


def job_records(given: object) -> list[JobRecord]:
    """What `restore` is given, also as JSON has it. ConfigurationError, which quotes nothing: it is request data."""
    taken = "restore() takes JobRecords, `report.returned` say, or mappings with the fields of one"
    if isinstance(given, (JobRecord, Mapping)):
        raise ConfigurationError(f"{taken}, not {type(given).__name__}; give a list of them")
    if not isinstance(given, Iterable):
        raise ConfigurationError(f"{taken}, not {type(given).__name__}")
    found: list[JobRecord] = []
    for one in given:
        if not isinstance(one, (JobRecord, Mapping)):
            raise ConfigurationError(f"{taken}, not {type(one).__name__}")
        found.append(_whole(one if isinstance(one, JobRecord) else _from_mapping(one, taken)))
    return found


def _from_mapping(one: Mapping[str, Any], taken: str) -> JobRecord:
    for name in JobRecord._fields:
        if name not in one:
            raise ConfigurationError(f"{taken}; this one has no {name!r}")
    if len(one) > len(JobRecord._fields):
        raise ConfigurationError(f"{taken}; this one has a key that is no field")
    return JobRecord(**one)


def _whole(one: JobRecord) -> JobRecord:
    """The same; the tenant and what is in the arguments are looked at later."""
    wrong = {
        "id": text_fault(one.id) and "a text of 1 to 256 bytes",
        "name": text_fault(one.name) and "a text of 1 to 256 bytes",
        "queue": text_fault(one.queue) and "a text of 1 to 256 bytes",
        "arguments": not isinstance(one.arguments, Mapping) and "a mapping",
        "attempt": not _is_count(one.attempt, 0) and f"a whole number from 0 to {MAXIMUM_COUNT:,}",
        "max_attempts": not _is_count(one.max_attempts, 1) and f"a whole number from 1 to {MAXIMUM_COUNT:,}",
        "delay": not _is_delay(one.delay) and f"a number of seconds from 0 to {MAXIMUM_SECONDS:g}",
        "last_error": not isinstance(one.last_error, str | None) and "a text or None",
    }
    for name, says in wrong.items():
        if says:
            raise ConfigurationError(f"restore() was given a JobRecord: {name} must be {says}")
    return one


def _is_count(value: object, low: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= MAXIMUM_COUNT


def _is_delay(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= MAXIMUM_SECONDS


def in_words(error: BaseException) -> str:
    """Class and first line of an error. Never raises: its text is the user's code."""
    try:
        text = without_secrets(str(error))
    except BaseException:  # noqa: BLE001
        text = "(its text cannot be read)"
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return f"{name}: {text}" if text else name
