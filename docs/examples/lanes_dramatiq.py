"""Tenant lanes on a broker that is not ours: Dramatiq and Redis. The workers: `dramatiq lanes_dramatiq`.

Each tenant's messages go to 2 of 4 queues, so a noisy tenant fills those and no others. Its id goes along as an option
of the message; a middleware sets it around the actor, so what an actor enqueues, or asks a database for, is its
tenant's too.
"""

from __future__ import annotations

import json
import os

import dramatiq
import redis
from dramatiq.brokers.redis import RedisBroker
from dramatiq.middleware import CurrentMessage

import bulkhead
from bulkhead.jobs import lane_queue, lane_queues

LANES = 4
URL = os.environ.get("REDIS_URL", "redis://127.0.0.1:6379/0")

broker: dramatiq.Broker = RedisBroker(url=URL)  # type: ignore[no-untyped-call]
store = redis.Redis.from_url(URL)


class Tenancy(dramatiq.Middleware):
    """Whoever enqueues is the tenant of what runs."""

    def __init__(self) -> None:
        self._blocks: dict[str, bulkhead.tenancy.Tenancy] = {}

    def before_process_message(self, broker: dramatiq.Broker, message: dramatiq.MessageProxy) -> None:
        """In the worker's thread, before the actor."""
        block = self._blocks[message.message_id] = bulkhead.tenant(message.options.get("tenant"))
        block.__enter__()

    def after_process_message(
        self,
        broker: dramatiq.Broker,
        message: dramatiq.MessageProxy,
        *,
        result: object = None,
        exception: BaseException | None = None,
    ) -> None:
        """In the same thread, also when it failed."""
        self._blocks.pop(message.message_id).__exit__(None, None, None)

    def after_skip_message(self, broker: dramatiq.Broker, message: dramatiq.MessageProxy) -> None:
        """Another middleware let it not run."""
        self.after_process_message(broker, message)


broker.add_middleware(Tenancy())
broker.add_middleware(CurrentMessage())
dramatiq.set_broker(broker)
for queue in lane_queues("shop", LANES):  # so that the workers serve all of them
    broker.declare_queue(queue)


def enqueue(actor: dramatiq.Actor[..., None], *args: object) -> None:
    """`actor.send(*args)`, on a lane of the tenant of now."""
    tenant = bulkhead.current_tenant()
    message = actor.message_with_options(args=args, tenant=tenant)
    broker.enqueue(message.copy(queue_name=lane_queue(tenant, "shop", LANES)))


@dramatiq.actor(queue_name="shop-0")
def report(number: int) -> None:
    """Write it down, and send it to two people: jobs of the same tenant."""
    note("report", number)
    enqueue(mail, number)
    enqueue(mail, number)


@dramatiq.actor(queue_name="shop-0")
def mail(number: int) -> None:
    """Send it."""
    note("mail", number)


def note(step: str, number: int) -> None:
    """What was done, for whom, and on which queue."""
    message = CurrentMessage.get_current_message()
    told = {"step": step, "number": number, "tenant": bulkhead.current_tenant()}
    store.rpush("reports", json.dumps({**told, "queue": message.queue_name if message else None}))
