"""What an application does with pylibmc (libmemcached): binary, text, and logged in by SASL."""
import os
import time

import pylibmc


def use(client):
    assert client.set("k", "value")
    assert client.get("k") == "value"
    assert client.set_multi({f"m{i}": i for i in range(100)}) == []
    found = client.get_multi([f"m{i}" for i in range(101)])
    assert found == {f"m{i}": i for i in range(100)}
    assert not client.add("k", "x") and client.replace("k", "y")
    assert client.set("n", 5) and client.incr("n", 3) == 8 and client.decr("n", 1) == 7
    large = os.urandom(1_000_000)
    assert client.set("large", large) and client.get("large") == large
    assert client.set("soon", "x", time=1)
    until = time.monotonic() + 30
    while client.get("soon") is not None:
        assert time.monotonic() < until, "it should have expired long ago"
        time.sleep(0.2)
    assert client.delete("k") and client.get("k") is None
    client.flush_all()
    assert client.get("large") is None


def at(variable, **kinds):
    return pylibmc.Client([f"127.0.0.1:{os.environ[variable]}"], **kinds)


use(at("PLAIN", binary=True))
text = at("PLAIN", binary=False, behaviors={"cas": True})
use(text)
text.set("c", 1)
value, cas = text.gets("c")
assert text.cas("c", 2, cas) and text.get("c") == 2
kinds = ["binary", "text"]
if pylibmc.support_sasl and os.environ["SASL"] != "0":
    use(at("SASL", binary=True, username="user", password="secret"))
    try:
        at("SASL", binary=True, username="user", password="wrong").set("k", "v")
        raise SystemExit("a wrong password was let in")
    except pylibmc.Error:
        kinds.append("SASL")
print(", ".join(kinds))
