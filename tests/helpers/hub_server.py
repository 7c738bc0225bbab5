"""A small server on this machine that plays the Hub: its files, and the faults that a test asks
for.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"
SMALL = 100  # bytes; such files are always sent whole


@dataclass(frozen=True)
class Answer:
    """An answer in place of the server's own."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: str = ""


class Server(ThreadingHTTPServer):
    """`files` has the contents by `repository/file`, `asked` each request with its Range.

    `fault` answers the requests whose `METHOD /path` contains `only`. The first `breaks` answers
    with a file end in the middle of it. With `stalls` they wait there until `closed`.
    """

    daemon_threads = True

    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files, self.asked = dict(files), list[tuple[str, str | None]]()
        self.fault: Answer | None = None
        self.only, self.breaks, self.stalls, self.closed = "", 0, False, threading.Event()
        self.lock = threading.Lock()
        self.url = f"http://127.0.0.1:{self.server_port}"

    def cuts(self) -> bool:
        """Return whether an answer ends early, and count it. Files are asked for side by side."""
        with self.lock:
            self.breaks -= 1
            return self.stalls or self.breaks >= 0

    def fetched(self) -> list[tuple[str, str | None]]:
        """The files that were asked for, not only about, each with its Range."""
        return [(name[4:], part) for name, part in self.asked if re.match("GET .*/resolve/", name)]


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        hub, wanted, asked = self.server, self.headers.get("Range"), f"{self.command} {self.path}"
        hub.asked.append((asked, wanted))
        if hub.fault and hub.only in asked:
            return self._send(hub.fault.status, hub.fault.headers, hub.fault.body.encode())
        if found := re.match(r"/api/models/([^/]+/[^/]+)/(revision|tree)/", self.path):
            repo, names = found[1], [name for name in hub.files if name.startswith(f"{found[1]}/")]
            held = [(name.removeprefix(f"{repo}/"), len(hub.files[name])) for name in names]
            tree = [
                {"type": "file", "path": name, "size": size, "oid": name} for name, size in held
            ]
            told = tree if found[2] == "tree" else {"id": repo, "sha": COMMIT, "siblings": []}
            return self._send(200, {"Content-Type": "application/json"}, json.dumps(told).encode())
        data = hub.files.get(re.sub(r"/resolve/[^/]+", "", self.path)[1:])
        headers = {"X-Repo-Commit": COMMIT}
        if data is None:
            return self._send(404, headers | {"X-Error-Code": "EntryNotFound"}, b"")
        headers |= {"ETag": f'"{hashlib.sha256(data).hexdigest()}"'}
        start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted else 0
        if wanted:
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        cut = self.command == "GET" and len(data) > SMALL and hub.cuts()
        return self._send(206 if wanted else 200, headers, data[start:], cut)

    do_HEAD = do_GET

    def _send(self, status: int, headers: dict[str, str], body: bytes, cut: bool = False) -> None:
        self.send_response(status)
        for name, value in (headers | {"Content-Length": str(len(body))}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        self.wfile.write(body[: len(body) // 2] if cut else body)
        if cut:
            self.server.closed.wait(600 if self.server.stalls else 0)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def hub_server(files: dict[str, bytes]) -> Iterator[Server]:
    """Serve files until the block ends."""
    server = Server(files)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield server
    finally:
        server.closed.set()
        server.shutdown()
        server.server_close()
