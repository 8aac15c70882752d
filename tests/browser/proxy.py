"""A proxy as people put in front of a server: it takes a path prefix away and passes on the rest."""

from __future__ import annotations

import contextlib
import http.client
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

OURS = {"connection", "transfer-encoding", "content-length"}


@contextlib.contextmanager
def prefixed(url: str, prefix: str) -> Iterator[str]:
    """The address of a proxy that answers for `url` under `prefix`, and 404 elsewhere."""
    target = urlsplit(url).netloc

    class Passing(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if not self.path.startswith(f"{prefix}/"):
                self.send_error(404)
                return
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            upstream = http.client.HTTPConnection(target, timeout=30)
            upstream.request(self.command, self.path.removeprefix(prefix), body or None, dict(self.headers))
            answer = upstream.getresponse()
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in OURS:
                    self.send_header(name, value)
            self.end_headers()
            while piece := answer.read1():
                self.wfile.write(piece)
            upstream.close()

        def do_POST(self) -> None:
            self.do_GET()

        def log_message(self, *_: Any) -> None:
            """Say nothing: the tests' output is theirs."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Passing) as proxy:
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{proxy.server_port}{prefix}/"
        proxy.shutdown()
