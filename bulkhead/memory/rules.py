"""What holds for cells: quotas and the like, from the section [memory] of the settings and what code put over it.

A `Rule` is made once and replaced as a whole, so a cell sees by one comparison that something has changed. A callable
of the user's is asked by the cell that needs the answer, once for each cell and rule, outside every lock.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from bulkhead import events
from bulkhead.counting import Tally
from bulkhead.errors import ConfigurationError
from bulkhead.log_lines import say
from bulkhead.memory.ledger import UNLIMITED
from bulkhead.nesting import inside, mark, unmark
from bulkhead.option_rows import Refused, check_known, keep, rows_of, shown
from bulkhead.settings import Memory
from bulkhead.settings.kinds import amount

if TYPE_CHECKING:
    from typing import Any

IDENTIFIER: Final = "server:memory"
"""What events and log lines call this limit. It is no registered resource."""
KIND: Final = "memory"
_BYTES: Final = amount()


class Rule:
    """The options in force, and the limit of each tenant by them."""

    __slots__ = ("_said", "options", "overhead")

    def __init__(self, options: Memory) -> None:
        self.options: Final = options
        self.overhead: Final = options.scratch_entry_overhead
        self._said = False

    def limit_of(self, tenant: str) -> int | None:
        """The bytes that this tenant may have. None: asked by the callable that is being asked. Never raises."""
        per_tenant, otherwise = self.options.tenant_quota_bytes, self.options.quota_bytes or UNLIMITED
        if per_tenant is None:
            return otherwise
        if isinstance(per_tenant, Mapping):
            found = per_tenant.get(tenant)
            return otherwise if found is None else found or UNLIMITED
        if inside(IDENTIFIER):
            return None
        around = mark(IDENTIFIER)
        try:
            answer = per_tenant(tenant)
        except Exception as error:  # noqa: BLE001  the user's code: accounting must not raise into a charge
            return self._complain(f"raised {type(error).__name__}", otherwise)
        finally:
            unmark(around)
        if answer is None:
            return otherwise
        try:
            return _BYTES.keep(answer) or UNLIMITED
        except Refused:
            return self._complain(f"answered {shown(answer)}, no number of bytes", otherwise)

    def _complain(self, what: str, otherwise: int) -> int:
        if not self._said:
            self._said = True
            text = f"the callable {what}; quota_bytes holds for the tenant (said once)"
            say("settings_warning", text, setting="memory.tenant_quota_bytes")
        return otherwise


class Rules:
    """Where cells find the rule of now. It knows no cell, so a cell that nobody holds goes at once."""

    __slots__ = ("before", "now", "refused")

    def __init__(self) -> None:
        self.before: Final = Rule(Memory())
        """What a cell has that has followed none yet."""
        self.now = Rule(Memory())
        self.refused = Tally()

    def count_refusal(self, tenant: str) -> None:
        """One more charge was refused."""
        number = self.refused.add()
        if not number & (number - 1):  # only the 1st, 2nd, 4th, 8th …: rate-limited without reading a clock
            say("rejected", identifier=IDENTIFIER, reason=KIND, count=number)
        if events.anybody():
            events.tell(events.Busy(IDENTIFIER, tenant, KIND, "charge", KIND))


def checked(values: Mapping[str, object], who: str) -> dict[str, Any]:
    """Options given in code, each checked as in a settings file. ConfigurationError names the option."""
    rows = rows_of(Memory)
    check_known(values, rows, who)
    try:
        return {name: keep(name, value, rows[name]) for name, value in values.items()}
    except Refused as refused:
        raise ConfigurationError(f"{who}: {refused}") from None
