"""Clients that find all servers of a cluster by ElastiCache's auto-discovery: one that is written with sockets, and Django's with pymemcache."""
import os

import elasticache_auto_discovery
from django_elastipymemcache.client import AWSElastiCacheClient

ports = os.environ["CLUSTER"].split()
one = f"127.0.0.1:{ports[0]}"
everywhere = [[b"127.0.0.1", b"127.0.0.1", port.encode()] for port in ports]
found = elasticache_auto_discovery.discover(one, 30)
assert found == everywhere, found

client = AWSElastiCacheClient(configuration_endpoint=one, timeout=30)
for i in range(100):
    assert client.set(f"d{i}", str(i), noreply=False)
for i in range(100):
    assert client.get(f"d{i}") == str(i).encode()
found = sorted(client.clients)
assert found == sorted(f"127.0.0.1:{port}" for port in ports), found
client.close()
print("three servers found by one, by two clients")
