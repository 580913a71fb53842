"""A small web server for a built site, with a live page of the runs in a folder."""

from __future__ import annotations

import hashlib
from functools import partial
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from markupsafe import Markup

from openrecipes.errors import InputError
from openrecipes.site import render
from openrecipes.site.live import Watch

_TYPES = {".yaml": "application/yaml", ".woff2": "font/woff2", ".md": "text/markdown"}


class Handler(SimpleHTTPRequestHandler):
    """Serves the site's files, nothing hidden and no listings, and the live page.

    A site keeps pages only; so the answer to anything but GET and HEAD is 501.
    """

    server_version = "openrecipes"
    sys_version = ""
    extensions_map = {**SimpleHTTPRequestHandler.extensions_map, **_TYPES}  # noqa: RUF012

    def __init__(self, *args: Any, watch: Watch | None = None, **more: Any) -> None:
        self.watch = watch
        super().__init__(*args, **more)

    def do_GET(self) -> None:
        """Answer with a file or the live page."""
        if not self._live():
            super().do_GET()

    def do_HEAD(self) -> None:
        """Answer as GET does, without the body."""
        if not self._live():
            super().do_HEAD()

    def _live(self) -> bool:
        path = urlsplit(self.path).path
        if self.watch is None or not path.startswith("/live"):
            return False
        match path:
            case "/live" | "/live/":
                self.send_response(HTTPStatus.FOUND)
                self.send_header("Location", "/live/index.html")
                self.send_header("Content-Length", "0")
                self.end_headers()
            case "/live/index.html":
                self._send(self._page())
            case "/live/part.html":
                self._send(self.watch.part())
            case _:
                self.send_error(HTTPStatus.NOT_FOUND)
        return True

    def _page(self) -> str:
        assert self.watch is not None
        return render.page(
            "live.html",
            "live/index.html",
            "live",
            ("live.js",),
            watched=self.watch.root.name or str(self.watch.root),
            part=Markup(self.watch.part()),
        )

    def _send(self, text: str) -> None:
        data = text.encode()
        tag = f'"{hashlib.sha256(data).hexdigest()[:16]}"'
        same = self.headers.get("If-None-Match") == tag
        self.send_response(HTTPStatus.NOT_MODIFIED if same else HTTPStatus.OK)
        self.send_header("ETag", tag)
        if not same:
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if not same and self.command != "HEAD":
            self.wfile.write(data)

    def send_head(self) -> Any:
        """Refuse hidden files and links that lead out of the site, then serve as usual."""
        path = unquote(urlsplit(self.path).path)
        hidden = any(part.startswith(".") for part in path.split("/") if part)
        inside = Path(self.translate_path(self.path)).resolve()
        if hidden or not inside.is_relative_to(Path(self.directory).resolve()):
            self.send_error(HTTPStatus.NOT_FOUND)
            return None
        return super().send_head()

    def list_directory(self, path: Any) -> None:
        """No listings."""
        self.send_error(HTTPStatus.NOT_FOUND)

    def end_headers(self) -> None:
        """The headers that every answer carries."""
        self.send_header("Content-Security-Policy", f"{render.POLICY}; frame-ancestors 'none'")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Cache-Control", "no-cache")
        super().end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet: a page that asks every second would fill the terminal."""


class Server(ThreadingHTTPServer):
    """One thread per connection; a reader who leaves early is no error."""

    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nothing to report: connections end."""


def server(site: Path, host: str, port: int, watch: Path | None = None) -> Server:
    """A server for ``site``, bound and ready for ``serve_forever``.

    Args:
        site: a folder that ``site build`` made; may be missing where only ``watch`` is wanted.
        host: address to listen on.
        port: port, 0 for any free one.
        watch: folder of runs to show live.

    Raises:
        InputError: no site, no such folder, or the port is taken.
    """
    if not site.is_dir():
        raise InputError("build it: openrecipes site build", file=site, found="no such directory")
    if watch is not None and not watch.is_dir():
        raise InputError(
            "give a folder of runs", file=watch, field="--watch", found="no such directory"
        )
    handler = partial(Handler, directory=str(site), watch=Watch(watch) if watch else None)
    try:
        return Server((host, port), handler)
    except (OSError, OverflowError) as error:
        raise InputError(
            "choose another --port or --host",
            field="--port",
            found=f"{host}:{port}, {getattr(error, 'strerror', None) or error}",
            expected="a free port",
        ) from None
