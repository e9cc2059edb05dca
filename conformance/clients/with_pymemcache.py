"""What an application does with pymemcache (text protocol): plain, logged in, and by TLS."""
import os
import ssl
import time

from pymemcache.client.base import Client
from pymemcache.exceptions import MemcacheClientError


class LoggingIn(Client):
    """pymemcache knows no login, but it is nothing but the first `set` of a connection (-Y)."""

    words = "user secret"

    def _connect(self):
        super()._connect()
        assert self.set("login", self.words, noreply=False)


class Guessing(LoggingIn):
    words = "user guess"


def is_refused(client):
    try:
        client.get("k")
    except MemcacheClientError as error:
        return error.args[0]


def eventually_gone(get):
    """Polls for as long as a busy machine may take."""
    until = time.monotonic() + 30
    while get() is not None:
        assert time.monotonic() < until, "it should have expired long ago"
        time.sleep(0.2)


def use(client):
    assert client.set("k", "value", noreply=False)
    assert client.get("k") == b"value"
    assert client.set_many({f"m{i}": str(i) for i in range(100)}, noreply=False) == []
    found = client.get_many([f"m{i}" for i in range(101)])
    assert found == {f"m{i}": str(i).encode() for i in range(100)}, len(found)
    value, cas = client.gets("k")
    assert client.cas("k", "other", cas, noreply=False) is True
    assert client.cas("k", "late", cas, noreply=False) is False
    assert client.cas("nosuch", "x", cas, noreply=False) is None
    assert client.add("k", "x", noreply=False) is False
    assert client.replace("k", "8", noreply=False)
    assert client.incr("k", 5, noreply=False) == 13
    assert client.decr("k", 20, noreply=False) == 0
    assert client.append("k", "1", noreply=False) and client.prepend("k", "2", noreply=False)
    large = os.urandom(1_000_000)
    assert client.set("large", large, noreply=False)
    assert client.get("large") == large
    assert client.set("soon", "x", expire=1, noreply=False)
    eventually_gone(lambda: client.get("soon"))
    assert client.touch("k", 100, noreply=False)
    assert client.delete("k", noreply=False)
    assert client.get("k") is None
    # A proxy tells its own.
    assert client.stats() if "PROXIED" in os.environ else client.stats()[b"curr_items"] > 0
    assert client.version()
    client.quit()


use(Client(("127.0.0.1", int(os.environ["PLAIN"])), timeout=60))
kinds = ["plain"]
if os.environ["PASSWORD"] != "0":
    guarded = ("127.0.0.1", int(os.environ["PASSWORD"]))
    use(LoggingIn(guarded, timeout=60))
    assert is_refused(Client(guarded, timeout=60)) == b"unauthenticated"
    assert is_refused(Guessing(guarded, timeout=60)) == b"authentication failure"
    kinds.append("logged in")
if os.environ["TLS"] != "0":
    context = ssl.create_default_context(cafile=os.environ["CERT"])
    use(Client(("localhost", int(os.environ["TLS"])), timeout=60, tls_context=context))
    kinds.append("TLS")
print(", ".join(kinds))
