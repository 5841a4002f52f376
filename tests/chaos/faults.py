"""What goes wrong. A fault is chosen, aimed and timed by the seed alone; where it says `of the focus`, the victim is whoever
has the focus stream at that instant."""

import signal
import threading
import time

from stage import DECODE, LINKS, PREFILL


class Plan:
    """One seed's fault: what the seed decides before anything has started."""

    def __init__(self, kind, rng, n_streams):
        self.kind = kind
        self.focus = rng.randrange(n_streams)
        self.role = rng.choice(("prefill", "decode"))
        self.fixed = rng.random() < 0.15  # a node by its name, whoever it serves
        self.number = rng.randrange(2)
        self.instant = rng.choice(("time", "token", "token", "sent", "opened"))
        self.time_ms, self.token, self.after_ms = rng.randrange(0, 1500), rng.randrange(1, 24), rng.choice((0, 0, 2, 10, 40))
        self.for_s = round(rng.uniform(0.3, 3), 2)
        self.direction = rng.choice(("up", "down", "both"))
        self.after_bytes = rng.choice((0, 10, 50, 200, 1000))
        self.mask = 1 << rng.randrange(8)
        self.channel = rng.choice(("control", "control", "bulk"))
        self.link = rng.choice(("router-prefill", "router-decode", "prefill-decode"))
        self.n = rng.randrange(1, 4)
        self.delay_s = rng.choice((0.005, 0.02, 0.05))
        self.everything = rng.random() < 0.3  # new connections too
        if kind == "poison":
            self.role = rng.choice(("prefill", "import", "decode"))
        if kind in ("corrupt-bulk",):
            self.channel, self.link, self.direction = "bulk", "prefill-decode", "up"
        elif kind == "corrupt-control":
            self.channel = "control"
        if self.channel == "bulk":
            self.link = "prefill-decode"
            self.after_bytes *= rng.choice((1, 50, 500))
        if kind in ("corrupt-bulk", "cut", "half-open", "slow", "duplicate", "reorder") and self.channel == "bulk":
            self.instant = rng.choice(("time", "sent", "opened"))

    def __str__(self):
        when = {"time": f"{self.time_ms} ms after the start", "token": f"at token {self.token} of stream {self.focus}",
                "sent": f"{self.after_ms} ms after stream {self.focus} went to a prefill node",
                "opened": f"{self.after_ms} ms after a decode node took stream {self.focus}"}[self.instant]
        node = f"{self.role}-{self.number}" if self.fixed else f"{self.role} of stream {self.focus}"
        link = f"{self.link} link of stream {self.focus}"
        what = {
            "kill": f"kill -9 {node}", "freeze": f"SIGSTOP {node} for {self.for_s} s", "drain": f"SIGTERM {node}",
            "cut": f"cut {link}", "half-open": f"silence {self.direction} on {link}" + (", new connections too" if self.everything else ""),
            "slow": f"{self.delay_s} s for each piece on {link} for {self.for_s} s",
            "corrupt-control": f"bit {self.mask:#x} turned {self.after_bytes} bytes on, {self.direction}, control, {link}",
            "corrupt-bulk": f"bit {self.mask:#x} turned {self.after_bytes} bytes on, bulk, {link}",
            "duplicate": f"{self.n} pieces twice, {self.direction}, {self.channel}, {link}",
            "reorder": f"{self.n} pieces change places, {self.direction}, {self.channel}, {link}",
            "slow-reader": f"stream {self.focus} is read slowly", "leave": f"stream {self.focus} is left",
            "poison": f"stream {self.focus} kills whoever takes it up, at {self.role}", "none": "nothing",
        }[self.kind]
        return what if self.kind in ("none", "slow-reader", "leave", "poison") else f"{what}, {when}"


KINDS = ("none", "kill", "freeze", "drain", "cut", "half-open", "slow", "corrupt-control", "corrupt-bulk", "duplicate", "reorder",
         "slow-reader", "leave", "poison")


class Fault(threading.Thread):
    """Carries the plan out while the streams run. `done` says what it met, for the log."""

    def __init__(self, plan, stage, streams):
        super().__init__(daemon=True)
        self.plan, self.stage, self.streams = plan, stage, streams
        self.done, self.over = "", threading.Event()
        self.killed = []

    def run(self):
        p = self.plan
        if p.kind in ("none", "slow-reader", "leave"):
            return
        if p.kind == "poison":
            self._poison()
            return
        self._wait_instant()
        getattr(self, "_" + p.kind.replace("-", "_"))()

    # ---- when, and whom ----

    def _focus(self):
        return self.streams[self.plan.focus]

    def _until(self, condition):
        end = time.monotonic() + 20
        while not self.over.is_set() and time.monotonic() < end:
            value = condition()
            if value:
                return value
            time.sleep(0.002)
        return None

    def _wait_instant(self):
        p, s = self.plan, self._focus()
        if p.instant == "time":
            time.sleep(p.time_ms / 1000)
        elif p.instant == "token":
            s.wait_events(p.token, 20)
        else:
            self._until(lambda: any(p.instant == "sent" or d for _, _, d in self.stage.sent(s.request_id)) or not s.is_alive())
            time.sleep(p.after_ms / 1000)

    def _nodes(self):
        """(prefill, decode) of the focus; by the seed's number where nothing is known."""
        p, known = self.plan, self.stage.sent(self._focus().request_id)
        last = known[-1] if known else (0, None, None)
        return last[1] or PREFILL[p.number], last[2] or DECODE[p.number]

    def _victim(self):
        p = self.plan
        if p.fixed:
            return f"{p.role}-{p.number}"
        return self._nodes()[0 if p.role == "prefill" else 1]

    def _connections(self):
        p, (prefill, decode) = self.plan, self._nodes()
        pair = {"router-prefill": ("router-0", prefill), "router-decode": ("router-0", decode),
                "prefill-decode": (prefill, decode)}[p.link]
        assert pair in LINKS
        self.done = f"{pair[0]}-{pair[1]}"
        return self.stage.proxies[pair], self.stage.proxies[pair].open_connections()

    def _pumps(self):
        p = self.plan
        for c in self._connections()[1]:
            if c.kind == p.channel:
                yield from [c.up] * (p.direction != "down") + [c.down] * (p.direction != "up")

    # ---- what ----

    def _kill(self):
        self.done = self._victim()
        self.stage.signal(self.done, signal.SIGKILL)

    def _drain(self):
        self.done = self._victim()
        self.stage.signal(self.done, signal.SIGTERM)

    def _freeze(self):
        self.done = self._victim()
        server = self.stage.signal(self.done, signal.SIGSTOP)
        time.sleep(self.plan.for_s)
        if server.process.poll() is None:
            server.process.send_signal(signal.SIGCONT)

    def _cut(self):
        for c in self._connections()[1]:
            c.cut()

    def _half_open(self):
        p = self.plan
        proxy, connections = self._connections()

        def silence(c):
            if p.direction != "down":
                c.up.stall()
            if p.direction != "up":
                c.down.stall()

        if p.everything:
            proxy.rule = silence
        for c in connections:
            silence(c)
        if p.everything:
            self.over.wait(p.for_s)
            proxy.rule = None
            for c in proxy.open_connections():
                if c not in connections:
                    c.cut()

    def _slow(self):
        p = self.plan
        proxy, connections = self._connections()
        for c in connections:
            c.up.delay(p.delay_s)
            c.down.delay(p.delay_s)
        self.over.wait(p.for_s)
        for c in connections:
            c.up.delay(0)
            c.down.delay(0)

    def _corrupt_control(self):
        for pump in self._pumps():
            pump.from_here("corrupt", self.plan.after_bytes, self.plan.mask)

    _corrupt_bulk = _corrupt_control

    def _duplicate(self):
        for pump in self._pumps():
            pump.twice_next(self.plan.n)

    def _reorder(self):
        for pump in self._pumps():
            pump.late_next(self.plan.n)

    def _poison(self):
        """Whoever takes the focus up dies of it."""
        p, s, n_seen = self.plan, self._focus(), 0

        def decoding(node):
            """Not before it has shown two tokens that only a decode node can have made."""
            return node if s.wait_events(s.n_events + 3, 20) else "nobody"

        def next_owner():
            nonlocal n_seen
            news = self.stage.sent(s.request_id)[n_seen:]
            for _, prefill, decode in news:
                n_seen += 1
                if prefill is None:  # it reads the prompt as well
                    return decoding(decode) if p.role == "decode" else decode
                if (decode is None) == (p.role == "prefill"):
                    return prefill if p.role == "prefill" else decode if p.role == "import" else decoding(decode)
            return not s.is_alive() and "nobody"

        while len(self.killed) < 6:
            owner = self._until(next_owner)
            if owner in (None, "nobody"):
                break
            self.killed.append(owner)
            self.stage.signal(owner, signal.SIGKILL)
        self.done = ",".join(self.killed)
