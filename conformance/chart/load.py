"""Ordinary clients of a cache, who wait for each answer: they read, and store what they miss. Each connection goes to some server that is ready
as it is made, as a Service has it.

What is counted of each tenth of a second: gets, hits, errors (what a client's caller would notice), and requests that were sent again since the
connection had been closed before an answer came.
"""

import bisect
import itertools
import json
import multiprocessing
import random
import socket
import threading
import time

KEYS, VALUE_BYTES, ZIPF = 20_000, 1_000, 0.9
TIMEOUT = 3.0
# Every other client connects anew after so many requests, as those of PHP do.
REQUESTS_SHORT = 200
SLOT = 0.1


def value_of(key):
    return (key * (VALUE_BYTES // len(key) + 1))[:VALUE_BYTES]


class Closed(Exception):
    pass


class Client:
    def __init__(self, endpoints, service, seed):
        self.endpoints, self.service, self.random = endpoints, service, random.Random(seed)
        self.is_short = seed % 2 == 1
        self.socket, self.requests, self.buffer = None, 0, b""

    def connect(self):
        self.close()
        with open(self.endpoints) as file:
            addresses = json.load(file)[self.service]
        if not addresses:
            raise Closed("no server is ready")
        try:
            self.socket = socket.create_connection((self.random.choice(addresses), 11211), TIMEOUT)
        except OSError as error:
            raise Closed(str(error)) from error
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.requests, self.buffer = 0, b""

    def close(self):
        if self.socket:
            self.socket.close()
        self.socket = None

    def line(self):
        while b"\r\n" not in self.buffer:
            self.more()
        line, self.buffer = self.buffer.split(b"\r\n", 1)
        return line

    def more(self):
        try:
            got = self.socket.recv(1 << 16)
        except TimeoutError:
            raise
        except OSError as error:
            raise Closed(str(error)) from error
        if not got:
            raise Closed("closed by the server")
        self.buffer += got

    def ask(self, request, answer):
        """The answer, by whichever server, and how often the request was sent again."""
        for again in range(20):
            try:
                if not self.socket or self.is_short and self.requests >= REQUESTS_SHORT:
                    self.connect()
                self.requests += 1
                self.socket.sendall(request)
                return answer(), again
            except (Closed, BrokenPipeError, ConnectionResetError):
                self.close()
                time.sleep(0.02 * again)
        raise TimeoutError("no server takes the request")

    def get(self, key):
        def answer():
            line = self.line()
            if line == b"END":
                return None
            words = line.split(b" ")
            if words[0] != b"VALUE":
                raise ValueError(line.decode(errors="replace"))
            length = int(words[3])
            while len(self.buffer) < length + 7:
                self.more()
            value, self.buffer = self.buffer[:length], self.buffer[length + 7 :]
            if value != value_of(key):
                raise ValueError(f"another value than that of {key}")
            return value

        return self.ask(b"get %s\r\n" % key, answer)

    def set(self, key):
        def answer():
            line = self.line()
            if line != b"STORED":
                raise ValueError(line.decode(errors="replace"))

        value = value_of(key)
        return self.ask(b"set %s 0 0 %d\r\n%s\r\n" % (key, len(value), value), answer)


def key(number):
    return b"key-%06d" % number


def load(client, stop, slots, errors, pause):
    """One client until the end. Others read what it counts when it has ended."""
    weights = list(itertools.accumulate(1 / (rank**ZIPF) for rank in range(1, KEYS + 1)))
    while not stop.is_set():
        one = key(bisect.bisect_left(weights, client.random.random() * weights[-1]) * 7919 % KEYS)
        began = time.monotonic()
        slot = slots.setdefault(int(began / SLOT), [0, 0, 0, 0, 0.0])
        for work in (client.get, client.set):
            try:
                found, again = work(one)
                slot[3] += again
            except (ValueError, TimeoutError) as error:
                slot[2] += 1
                errors.append((began, f"{work.__name__}: {error}"))
                client.close()
                break
            if work == client.get:
                slot[0] += 1
                slot[1] += found is not None
            if found is not None:
                break
        slot[4] = max(slot[4], time.monotonic() - began)
        time.sleep(pause)


def loads(endpoints, service, seeds, stop, out, pause):
    """A process with a thread for each client. Counts are sent when it ends."""
    counted = [({}, []) for _ in seeds]
    threads = [
        threading.Thread(target=load, args=(Client(endpoints, service, seed), stop, slots, errors, pause))
        for seed, (slots, errors) in zip(seeds, counted, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    out.put(counted)


class Load:
    """Starts and ends them, and says what they have counted."""

    def __init__(self, endpoints, service, processes=2, clients=8, pause=0.002):
        self.stop, self.out = multiprocessing.Event(), multiprocessing.Queue()
        seeds = [list(range(process * clients, (process + 1) * clients)) for process in range(processes)]
        self.processes = [
            multiprocessing.Process(target=loads, args=(endpoints, service, some, self.stop, self.out, pause), daemon=True) for some in seeds
        ]
        for process in self.processes:
            process.start()

    def end(self):
        self.stop.set()
        slots, errors = {}, []
        for _ in self.processes:
            for counted, failed in self.out.get(timeout=30):
                errors += failed
                for at, slot in counted.items():
                    before = slots.get(at, [0, 0, 0, 0, 0.0])
                    slots[at] = [*(a + b for a, b in zip(before[:4], slot[:4], strict=True)), max(before[4], slot[4])]
        return Counted(slots, sorted(errors))


class Counted:
    def __init__(self, slots, errors):
        self.slots, self.errors = slots, errors

    def between(self, begin, end):
        """A slot belongs to where it ends."""
        some = [slot for at, slot in self.slots.items() if begin < (at + 1) * SLOT <= end]
        gets, hits, errors, again = (sum(slot[i] for slot in some) for i in range(4))
        longest = max((slot[4] for slot in some), default=0.0)
        return {"gets": gets, "hits": hits, "errors": errors, "again": again, "longest": longest}

    def worst_second(self, begin, end):
        """The least hit ratio of a whole second."""
        ratios, at = [], begin
        while at + 1 <= end:
            part = self.between(at, at + 1)
            if part["gets"] > 0:
                ratios.append(part["hits"] / part["gets"])
            at += 0.5
        return min(ratios, default=0.0)


def fill(endpoints, service):
    client = Client(endpoints, service, 0)
    for number in range(KEYS):
        client.set(key(number))
    client.close()
