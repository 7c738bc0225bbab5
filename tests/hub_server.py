"""A small server on this machine that plays the Hub: its files, and the faults that a test asks for."""

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


@dataclass(frozen=True)
class Answer:
    """An answer that the server gives in place of its own."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: str = ""


class Server(ThreadingHTTPServer):
    """`files` has the contents by `repository/file`; every method and path asked for goes to `asked`, with its Range.

    `fault` answers all requests, or those of the method in `only`. The first `breaks` answers with a file end in the middle of
    it. With `stalls` all of them wait there until the server is closed.
    """

    daemon_threads = True

    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files, self.asked = files, list[tuple[str, str, str | None]]()
        self.fault: Answer | None = None
        self.only, self.breaks, self.stalls, self.closed = "", 0, False, threading.Event()
        self.url = f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        hub, wanted = self.server, self.headers.get("Range")
        hub.asked.append((self.command, self.path, wanted))
        if hub.fault and hub.only in ("", self.command):
            return self._send(hub.fault.status, hub.fault.headers, hub.fault.body.encode())
        if listed := re.fullmatch(r"/api/models/([^/]+/[^/]+)/(revision|tree)/[^/?]+(\?.*)?", self.path):
            held = {name.removeprefix(listed[1] + "/"): data for name, data in hub.files.items() if name.startswith(listed[1])}
            tree = [{"type": "file", "path": name, "size": len(data), "oid": name} for name, data in held.items()]
            content = {"id": listed[1], "sha": COMMIT, "siblings": []} if listed[2] == "revision" else tree
            return self._send(200, {"Content-Type": "application/json"}, json.dumps(content).encode())
        data = hub.files.get(re.sub(r"/resolve/[^/]+", "", self.path)[1:])
        if data is None:
            return self._send(404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT}, b"")
        headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{hashlib.sha256(data).hexdigest()}"', "Accept-Ranges": "bytes"}
        start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted else 0
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        return self._send(206 if start else 200, headers, data[start:], cut=(hub.stalls or hub.breaks > 0) and len(data) > 100)

    do_HEAD = do_GET

    def _send(self, status: int, headers: dict[str, str], body: bytes, cut: bool = False) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        self.wfile.write(body[: len(body) // 2] if cut else body)
        if cut:
            self.server.breaks -= 1
            self.server.closed.wait(600 if self.server.stalls else 0)
            self.close_connection = True

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def hub_server(files: dict[str, bytes]) -> Iterator[Server]:
    """Serve files until the block ends."""
    server = Server(files)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server
    finally:
        server.closed.set()
        server.shutdown()
        server.server_close()
