"""A TCP proxy that goes wrong on purpose: it cuts, stalls, delays, corrupts, repeats or reorders what passes through it, at a
byte that a test names.

    proxy = FaultProxy("127.0.0.1:9000")
    proxy.rule = lambda c: c.kind == "bulk" and c.up.corrupt(200_000)   # asked once for each connection
    ... connect to proxy.address ...
    proxy.connections[-1].up.stall()                                    # or at any moment
    proxy.close()
"""

import asyncio
import threading


class Pump:
    """One direction of a connection. Offsets count the bytes that came in, from 0."""

    def __init__(self, connection):
        self.connection, self.loop = connection, connection.proxy.loop
        self.offset = 0
        self.corrupt_at, self.repeat_at = {}, {}
        self.twice = self.late = 0  # pieces still to be sent twice, or after the piece behind them
        self.touched = False
        self.cut_at = self.stall_at = None
        self.delay_s = 0.0
        self.flows = asyncio.Event()
        self.flows.set()

    # what a test asks for, from any thread
    def corrupt(self, offset, mask=0x10):
        self.corrupt_at[offset] = mask

    def repeat(self, offset, n):
        """The n bytes up to offset come twice."""
        self.repeat_at[offset] = n

    def cut(self, offset=None):
        if offset is None:
            self.loop.call_soon_threadsafe(self.connection.close)
        else:
            self.cut_at = offset

    def stall(self, offset=None):
        if offset is None:
            self.loop.call_soon_threadsafe(self.flows.clear)
        else:
            self.stall_at = offset

    def resume(self):
        self.stall_at = None
        self.loop.call_soon_threadsafe(self.flows.set)

    def delay(self, seconds):
        self.delay_s = seconds

    def from_here(self, what, after=0, *arguments):
        """corrupt, repeat, cut or stall, `after` bytes behind what has passed so far."""
        self.loop.call_soon_threadsafe(lambda: getattr(self, what)(self.offset + after, *arguments))

    @property
    def wrong(self):
        """Something was done to it, or is to come."""
        return bool(self.corrupt_at or self.repeat_at or self.delay_s or self.cut_at is not None or self.stall_at is not None or
                    self.touched or not self.flows.is_set())

    def heal(self):
        """Forgets what is still to come, and flows."""
        def forget():
            self.corrupt_at, self.repeat_at, self.cut_at, self.delay_s = {}, {}, None, 0.0
            self.twice = self.late = 0

        self.loop.call_soon_threadsafe(forget)
        self.resume()

    def twice_next(self, n=1):
        """The next n pieces come twice. A piece is what arrives at once: often whole frames."""
        self.loop.call_soon_threadsafe(lambda: self.disorder(n, 0))

    def late_next(self, n=1):
        """n times, a piece changes places with the one behind it."""
        self.loop.call_soon_threadsafe(lambda: self.disorder(0, n))

    def disorder(self, twice, late):
        self.twice, self.late, self.touched = twice, late, True

    # what it does
    def change(self, data):
        """The chunk as it goes out, and what happens after it: None, "cut" or "stall"."""
        start, end, then = self.offset, self.offset + len(data), None
        for name, at in (("cut", self.cut_at), ("stall", self.stall_at)):
            if at is not None and at < end:
                data, end, then = data[:max(0, at - start)], max(start, at), name
        out = bytearray(data)
        for at, mask in self.corrupt_at.items():
            if start <= at < end:
                out[at - start] ^= mask
        for at, n in sorted(self.repeat_at.items(), reverse=True):
            if start < at <= end:
                out[at - start:at - start] = out[max(0, at - start - n):at - start]
        self.offset += len(data)
        return bytes(out), then

    async def piece(self, reader):
        data = await reader.read(1 << 16)
        if self.twice and data:
            self.twice -= 1
            return data * 2
        if self.late and data:
            self.late -= 1
            return await reader.read(1 << 16) + data
        return data

    async def run(self, reader, writer):
        while True:
            await self.flows.wait()
            data = await self.piece(reader)
            if not data:
                return
            self.connection.saw(self, data)
            rest = data
            while rest:
                before = self.offset
                out, then = self.change(rest)
                rest = rest[self.offset - before:]
                await self.flows.wait()
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                writer.write(out)
                await writer.drain()
                if then == "cut":
                    return
                if then == "stall":
                    self.stall_at = None
                    self.flows.clear()


class Connection:
    """up: from who dialled to who is dialled. kind: "control" or "bulk", as its hello says."""

    def __init__(self, proxy, reader, writer):
        self.proxy, self.reader, self.writer = proxy, reader, writer
        self.kind, self.number, self.closed = None, len(proxy.connections), False
        self.up, self.down = Pump(self), Pump(self)
        self.other = None

    def saw(self, pump, data):
        if self.kind is None and pump is self.up:
            self.kind = "bulk" if b'"connection":"bulk"' in data else "control"
            if self.proxy.rule:
                self.proxy.rule(self)

    def stall(self):
        self.up.stall()
        self.down.stall()

    def cut(self):
        self.up.cut()

    def close(self):
        self.closed = True
        for w in (self.writer, self.other):
            if w:
                w.close()

    async def run(self):
        try:
            reader, self.other = await asyncio.open_connection(*self.proxy.target)
            pumps = [asyncio.ensure_future(self.up.run(self.reader, self.other)),
                     asyncio.ensure_future(self.down.run(reader, self.writer))]
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            for p in pumps:
                p.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
        except OSError:
            pass
        self.close()


class FaultProxy:
    def __init__(self, target):
        host, port = target.rsplit(":", 1)
        self.target, self.rule, self.connections = (host, int(port)), None, []
        self.loop = asyncio.new_event_loop()
        ready = threading.Event()
        self.thread = threading.Thread(target=self.serve, args=(ready,), daemon=True)
        self.thread.start()
        ready.wait(10)

    def serve(self, ready):
        asyncio.set_event_loop(self.loop)

        async def accept(reader, writer):
            connection = Connection(self, reader, writer)
            self.connections.append(connection)
            await connection.run()

        async def start():
            self.server = await asyncio.start_server(accept, "127.0.0.1", 0)
            self.address = "127.0.0.1:%d" % self.server.sockets[0].getsockname()[1]

        self.loop.run_until_complete(start())
        ready.set()
        self.loop.run_forever()

    def open_connections(self, kind=None):
        return [c for c in self.connections if not c.closed and kind in (None, c.kind)]

    def forget_closed(self):
        def forget():
            self.connections[:] = self.open_connections()

        self.loop.call_soon_threadsafe(forget)

    def close(self):
        async def stop():
            self.server.close()
            for c in self.connections:
                c.close()
            tasks = [t for t in asyncio.all_tasks() if t is not asyncio.current_task()]
            for t in tasks:
                t.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(stop(), self.loop).result(10)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(10)
        self.loop.close()
