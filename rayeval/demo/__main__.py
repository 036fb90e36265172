"""``python -m rayeval.demo``: both servers in one process, until a signal or the end of standard input."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import resource
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import orjson
from aiohttp import web

from rayeval.demo.catalogue import demo_catalogue, read_catalogue
from rayeval.demo.model_server import ModelServer
from rayeval.demo.options import DemoOptions, parse_options
from rayeval.demo.serving import Handler, HttpServer, ProcessClock, plain_json
from rayeval.demo.shop import Shop
from rayeval.demo.shop_server import ShopServer
from rayeval.exceptions import ConfigurationError, StoppedError
from rayeval.schemas import ExitCode, JsonObject


def _when_stdin_ends(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    # os.read, not sys.stdin: a daemon thread inside a buffered reader aborts the interpreter's shutdown
    with contextlib.suppress(OSError):
        while os.read(0, 4096):
            pass
    with contextlib.suppress(RuntimeError):  # the loop has closed by a signal
        loop.call_soon_threadsafe(stop.set)


def _room_for_connections() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class DemoApp:
    """Both servers; ``/stats`` and ``/stats/reset`` on either port are about both."""

    def __init__(self, options: DemoOptions) -> None:
        catalogue = read_catalogue(Path(options.catalogue)) if options.catalogue else demo_catalogue()
        self._options = options
        self._clock = ProcessClock()
        self._shop = ShopServer(Shop(catalogue), options)
        self._model = ModelServer(options)
        # the real environment goes on when its client has left, a model server aborts
        self._shop_http = HttpServer(self._with_stats(self._shop.handle), cancel_when_client_goes=False)
        self._model_http = HttpServer(self._with_stats(self._model.handle), cancel_when_client_goes=True)

    def _with_stats(self, inner: Handler) -> Handler:
        async def handle(request: web.BaseRequest) -> web.StreamResponse:
            if request.path in ("/stats", "/v1/stats") and request.method == "GET":
                return plain_json(self.stats())
            if request.path in ("/stats/reset", "/v1/stats/reset") and request.method == "POST":
                self._clock.reset()
                self._shop.reset_stats()
                self._model.reset_stats()
                return plain_json({"ok": True})
            return await inner(request)

        return handle

    def stats(self) -> JsonObject:
        """Counters of both sides and the cost of the process."""
        return {
            **self._clock.to_json(),
            "model": {**self._model.stats(), "connections": self._model_http.connections},
            "env": {**self._shop.stats(), "connections": self._shop_http.connections},
        }

    async def start(self) -> dict[str, str]:
        """Listen on both ports; -> their base URLs, the model's with its ``/v1``. Raises StoppedError when a port is taken."""
        options = self._options
        urls: dict[str, str] = {}
        for name, http, port, prefix in (
            ("shop", self._shop_http, options.shop_port, ""),
            ("model", self._model_http, options.model_port, "/v1"),
        ):
            try:
                urls[name] = await http.start(options.host, port) + prefix
            except OSError as exc:
                raise StoppedError(f"the demo cannot listen on {options.host}:{port} ({name}): {exc}") from exc
        return urls

    async def close(self) -> None:
        """Stop listening and close the log."""
        await asyncio.gather(self._shop_http.close(), self._model_http.close())
        self._shop.close()


async def serve(options: DemoOptions) -> None:
    """Run both servers until SIGINT, SIGTERM or, if asked for, the end of standard input."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    loop.add_signal_handler(signal.SIGINT, stop.set)
    loop.add_signal_handler(signal.SIGTERM, (lambda: None) if options.ignore_sigterm else stop.set)
    app = DemoApp(options)
    try:
        urls = await app.start()
        sys.stdout.write(orjson.dumps(urls).decode() + "\n")
        sys.stdout.flush()
        if options.exit_with_stdin:
            threading.Thread(target=_when_stdin_ends, args=(loop, stop), daemon=True).start()
        gc.freeze()  # the catalogue never dies
        await stop.wait()
    finally:
        await app.close()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo; -> an exit code."""
    try:
        options = parse_options(argv)
        _room_for_connections()
        try:
            import uvloop
        except ImportError:
            asyncio.run(serve(options))
        else:
            uvloop.run(serve(options))
    except ConfigurationError as exc:
        sys.stderr.write(f"{exc}\n")
        return ExitCode.BAD_INPUT
    except StoppedError as exc:
        sys.stderr.write(f"{exc}\n")
        return ExitCode.STOPPED
    return ExitCode.OK


if __name__ == "__main__":
    sys.exit(main())
