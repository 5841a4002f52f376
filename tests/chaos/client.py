"""A client: one request, when its bytes came, and how it ended."""

import http.client
import json
import socket
import threading
import time
import urllib.parse

HANGS_S = 60


class Stream(threading.Thread):
    """manner: "" reads as it comes; "slow" with a small window, a little at a time; "leave" hangs up after leave_at events."""

    def __init__(self, url, ask, request_id, delay_s=0.0, manner="", leave_at=0):
        super().__init__(daemon=True)
        parts = urllib.parse.urlsplit(url)
        self.host, self.port = parts.hostname, parts.port
        self.ask, self.request_id, self.delay_s, self.manner, self.leave_at = ask, request_id, delay_s, manner, leave_at
        self.status = self.error = self.retry_after = None
        self.data, self.times, self.n_events, self.left, self.hung = b"", [], 0, False, False
        self.news = threading.Condition()

    def run(self):
        time.sleep(self.delay_s)
        try:
            self._ask()
        except TimeoutError:
            self.hung = True
        except (OSError, http.client.HTTPException) as e:
            self.error = f"{type(e).__name__}: {e}"
        with self.news:
            self.times.append(time.monotonic())
            self.news.notify_all()

    def _connect(self):
        s = socket.socket()
        s.settimeout(HANGS_S)
        if self.manner == "slow":
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        s.connect((self.host, self.port))
        return s

    def _ask(self):
        connection = http.client.HTTPConnection(self.host, self.port, timeout=HANGS_S)
        connection.sock = self._connect()
        self.times.append(time.monotonic())
        try:
            connection.request("POST", self.ask.path, json.dumps(self.ask.body), {"x-request-id": self.request_id})
            self._hang_up_early(connection)
            response = connection.getresponse()
            self.status, self.retry_after = response.status, response.getheader("retry-after")
            while not self.left:
                piece = response.read1(256 if self.manner == "slow" else 1 << 16)
                if not piece:
                    break
                with self.news:
                    self.data += piece
                    self.n_events = self.data.count(b"\n\n") if self.ask.streamed else 0
                    self.times.append(time.monotonic())
                    self.news.notify_all()
                self.left = self.manner == "leave" and self.n_events >= self.leave_at
                if self.manner == "slow":
                    time.sleep(0.02)
        finally:
            connection.close()

    def _hang_up_early(self, connection):
        """Before the first byte of an answer: leave_at is then a time, in negative milliseconds."""
        if self.manner == "leave" and self.leave_at < 0:
            time.sleep(-self.leave_at / 1000)
            self.left = True
            connection.close()
            raise OSError("left")

    def wait_events(self, n, seconds):
        """False when it ended first."""
        with self.news:
            self.news.wait_for(lambda: self.n_events >= n or not self.is_alive(), seconds)
            return self.n_events >= n

    def silence_s(self):
        return max((b - a for a, b in zip(self.times, self.times[1:])), default=0.0)

    def error_code(self):
        """The typed error of an answer that failed, before or after its first byte; else what the connection met."""
        text = self.data.decode(errors="replace")
        for line in reversed(text.split("\n")):
            line = line[6:] if line.startswith("data: ") else line
            if line.startswith("{") and '"error"' in line:
                try:
                    found = json.loads(line).get("error")
                except ValueError:
                    continue
                if found:
                    return found.get("code") or found.get("type") or "error"
        return self.error or (None if self.status == 200 else f"status {self.status}")
