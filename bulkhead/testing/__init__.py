"""What tests and demos need of the world: private real servers, peers with bad manners, control of Toxiproxy.

Importing this needs neither pytest nor a driver nor the Toxiproxy client.
"""

from bulkhead.testing.peers import CLOSE, SILENT, NeverAccepting, ScriptedRedis, ScriptedServer, SilentServer
from bulkhead.testing.processes import ServerProcess, ServerUnavailable, free_port
from bulkhead.testing.servers import HttpServer, PostgresServer, RedisServer, ToxiproxyServer
from bulkhead.testing.toxiproxy import Proxy, Toxic, Toxiproxy, ToxiproxyError

__all__ = [
    "CLOSE",
    "SILENT",
    "HttpServer",
    "NeverAccepting",
    "PostgresServer",
    "Proxy",
    "RedisServer",
    "ScriptedRedis",
    "ScriptedServer",
    "ServerProcess",
    "ServerUnavailable",
    "SilentServer",
    "Toxic",
    "Toxiproxy",
    "ToxiproxyError",
    "ToxiproxyServer",
    "free_port",
]
