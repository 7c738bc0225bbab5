"""A small server on this machine that plays the Hub: its files, and broken connections."""

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

COMMIT = "0123456789abcdef0123456789abcdef01234567"
SMALL = 100  # bytes; such files are always sent whole


class Server(ThreadingHTTPServer):
    """`files` by `owner/repository/file`, `requests` with a Range. The first `breaks` answers
    with a path that contains `only` are cut in the middle, or with `stalls` wait until `closed`.
    """

    daemon_threads = True

    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files, self.requests = dict(files), list[tuple[str, str | None]]()
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
        return [(name[4:], at) for name, at in self.requests if re.match("GET .*/resolve/", name)]


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        hub, wanted = self.server, self.headers.get("Range")
        hub.requests.append((f"{self.command} {self.path}", wanted))
        if found := re.match(r"/api/models/([^/]+/[^/]+)/(revision|tree)/", self.path):
            told: Any = {"id": found[1], "sha": COMMIT, "siblings": []}
            if found[2] == "tree":
                told = [
                    {"type": "file", "path": name.split("/", 2)[2], "size": len(data), "oid": name}
                    for name, data in hub.files.items()
                ]
            headers = {"Content-Type": "application/json"}
            return self._send(200, headers, json.dumps(told).encode())
        data = hub.files.get(re.sub(r"/resolve/[^/]+", "", self.path)[1:])
        headers = {"X-Repo-Commit": COMMIT}
        if data is None:
            return self._send(404, headers, b"")
        headers |= {"ETag": f'"{hashlib.sha256(data).hexdigest()}"'}
        start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted else 0
        if wanted:
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        large = self.command == "GET" and len(data) > SMALL and hub.only in self.path
        return self._send(206 if wanted else 200, headers, data[start:], large and hub.cuts())

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
    server = Server(files)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield server
    finally:
        server.closed.set()
        server.shutdown()
        server.server_close()
