"""An S3-compatible server in this process, whose moods a test chooses."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

BUCKET = "sweeps"
_REFUSED = {"403 Forbidden": "AccessDenied", "503 Slow Down": "SlowDown"}


@dataclass
class ObjectStore:
    """A server with one bucket.

    Args:
        refuses: how it answers whoever writes: a line of `_REFUSED`, or nothing.
        pause_s: what each answer takes longer.
    """

    app: Any = field(default_factory=lambda: DomainDispatcherApplication(create_backend_app))
    refuses: str = ""
    pause_s: float = 0.0
    requests: int = 0
    server: Any = None

    def __call__(self, environ: dict[str, Any], respond: Callable[..., Any]) -> Iterable[bytes]:
        """Answer one request: the interface of WSGI."""
        time.sleep(self.pause_s)
        self.requests += 1
        if environ["REQUEST_METHOD"] in ("PUT", "POST", "DELETE") and self.refuses:
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            respond(self.refuses, [("Content-Type", "application/xml")])
            return [f"<Error><Code>{_REFUSED[self.refuses]}</Code></Error>".encode()]
        answer: Iterable[bytes] = self.app(environ, respond)
        return answer

    @property
    def environment(self) -> dict[str, str]:
        """What a client must know: the variables of the AWS tools."""
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.server.server_port}",
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "somebody",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def go(self) -> None:
        """Answer nobody any more."""
        self.server.shutdown()
        self.server.server_close()


@contextmanager
def object_store() -> Iterator[ObjectStore]:
    """Start a server on a free port of the loopback; its content goes with it."""
    store = ObjectStore()
    store.server = make_server("127.0.0.1", 0, store, threaded=True)
    serving = threading.Thread(target=store.server.serve_forever, daemon=True)
    serving.start()
    for method, path in (("POST", "moto-api/reset"), ("PUT", BUCKET)):  # what a server before kept
        line = http.client.HTTPConnection("127.0.0.1", store.server.server_port)
        line.request(method, f"/{path}")
        assert line.getresponse().status == 200
    try:
        yield store
    finally:
        if serving.is_alive():
            store.go()
