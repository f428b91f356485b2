"""`ddpviz serve`: the dashboard in a browser, every tab a view of one run. Needs the extra `ddpviz[serve]`.

A page in a browser may talk to any address, and the server knows no passwords: so requests that another site's page
makes, or that reach a loopback address under another name, are refused.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

from aiohttp import web
from textual_serve.server import Server

from ddpviz.cli.viewers import Tab, Viewers, size_of
from ddpviz.language import _, current

_LOOPBACK = {"localhost", "127.0.0.1", "::1"}
# As the console script starts it: the working folder does not get onto sys.path, where its files would shadow Python's.
_VIEWER = (
    "import sys; sys.path[0:1] = []; sys.path.append(sys.argv.pop(1)); "
    "from ddpviz.cli.tab import main; sys.exit(main())"
)
# The page asks another host for its typeface; the package has the same one beside it, and nothing else is let through.
_FOREIGN_FONT = "https://fonts.googleapis.com/css?family=Roboto%20Mono"
_FONT = """@font-face { font-family: "Roboto Mono"; font-weight: 100 700;
  src: url("/static/fonts/RobotoMono-VariableFont_wght.ttf") format("truetype"); }
"""
# Keys work at once, not only after a click into the page; its script cannot bear the focus before it is connected.
_FOCUS = """<script>addEventListener("load", () => {
  const waiting = setInterval(() => {
    const terminal = document.querySelector("body.-loaded .xterm-helper-textarea");
    if (terminal) { clearInterval(waiting); terminal.focus(); }
  }, 100);
});</script>
</body>"""
_POLICY = (
    "default-src 'self'; style-src 'self' 'unsafe-inline'; script-src 'self' 'unsafe-inline'; img-src "
    "'self' data:; font-src 'self' data:; connect-src 'self' ws: wss:"
)


def command(run_dir: Path) -> str:
    """What tabs look at: a viewer of that run."""
    package = Path(__file__).resolve().parents[2]
    return "exec " + shlex.join(
        [sys.executable, "-c", _VIEWER, str(package), "watch", "--lang", current(), str(run_dir)]
    )


def serve(run_dir: Path, host: str, port: int) -> None:
    """Serve viewers of a run until Ctrl-C. Raises OSError if the address cannot be had."""
    _Server(command(run_dir), host=host, port=port, title=f"ddpviz {run_dir.name}").serve()


def allowed(host: str, name: str, origin: str | None) -> bool:
    """Whether a request may be answered by a server bound to `host`; `name` is its Host header, `origin` its Origin."""
    bare = name.rsplit(":", 1)[0].strip("[]") if not name.endswith("]") else name.strip("[]")
    if host in _LOOPBACK and bare not in _LOOPBACK:
        return False
    return origin is None or origin.split("://", 1)[-1] == name


class _Server(Server):
    """textual-serve's server, quiet, guarded, and reachable under the name that the browser used."""

    def __init__(self, command: str, *, host: str, port: int, title: str) -> None:
        super().__init__(command, host=host, port=port, title=title)
        self.viewers = Viewers(command, self.download_manager)

    def initialize_logging(self) -> None:
        pass

    async def on_startup(self, app: web.Application) -> None:
        print(
            _("ddpviz: serving on {public_url} until Ctrl-C", public_url=self.public_url), file=sys.stderr, flush=True
        )
        if self.host not in _LOOPBACK:
            print(
                _("ddpviz: there is no password: anybody who reaches this address sees the run"),
                file=sys.stderr,
                flush=True,
            )

    async def on_shutdown(self, app: web.Application) -> None:
        await self.viewers.close()

    async def handle_websocket(self, request: web.Request) -> web.WebSocketResponse:
        try:
            size = size_of(request.query.get("width", 80), request.query.get("height", 24))
        except ValueError:
            raise web.HTTPBadRequest from None
        socket = web.WebSocketResponse(heartbeat=15)
        await socket.prepare(request)
        await Tab(socket, self.viewers, size).run()
        return socket

    async def handle_index(self, request: web.Request) -> Any:
        self.public_url = f"{request.scheme}://{request.host}"
        return await super().handle_index(request)

    async def _make_app(self) -> web.Application:
        app = await super()._make_app()

        @web.middleware
        async def guard(request: web.Request, handler: Any) -> web.StreamResponse:
            if not allowed(self.host, request.host, request.headers.get("Origin")):
                raise web.HTTPForbidden(text=_("ddpviz serves its own page alone"))
            answer: web.StreamResponse = await handler(request)
            if isinstance(answer, web.Response) and answer.content_type == "text/html" and answer.text:
                answer.text = answer.text.replace(_FOREIGN_FONT, "/font.css").replace("</body>", _FOCUS)
                answer.headers["Content-Security-Policy"] = _POLICY
            return answer

        async def font(request: web.Request) -> web.Response:
            return web.Response(text=_FONT, content_type="text/css")

        app.router.add_get("/font.css", font)
        app.middlewares.append(guard)
        return app
