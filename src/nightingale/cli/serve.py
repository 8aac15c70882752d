"""`nightingale serve`: run the server until it is stopped."""

from __future__ import annotations

import signal
import sys
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nightingale.cli.console import exit_on_error, note, parse_options
from nightingale.cli.options import option as flag
from nightingale.errors import NightingaleError

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from nightingale.server.server_processes import ProcessPlace
    from nightingale.server.settings import ServerSettings


def serve(config: Annotated[Path | None, flag("A TOML file with settings.")] = None, **settings: Any) -> None:
    """Serve OpenAI's audio API, WebSockets and a web page (docs/http-api.md).

    Each flag can also be a variable (NIGHTINGALE_PORT) or a key of nightingale.toml: docs/running.md.
    """
    from nightingale.server.settings import ServerSettings, unknown_keys

    load = partial(ServerSettings.load, config, **read_flags(settings))
    loaded = load()
    loaded.check_bind()
    if loaded.wyoming:
        from nightingale.server.listen_socket import check_wyoming

        check_wyoming(loaded.wyoming, insecure=loaded.insecure)
    for name in unknown_keys(config):
        note(f"warning: unknown setting {name}")
    if loaded.workers > 1:
        run_processes(loaded, load)
    else:
        run(loaded, load)


def read_flags(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the values of flags as `ServerSettings.load` takes them."""
    pairs = settings.get("option")
    return {**settings, "option": parse_options(pairs) if pairs else None}


def run_processes(settings: ServerSettings, load: Callable[[], ServerSettings]) -> None:
    """Serve with several processes until SIGINT or SIGTERM."""
    import asyncio
    import logging.config
    from tempfile import TemporaryDirectory

    from nightingale.server.listen_socket import open_listen_socket
    from nightingale.server.logs import log_config
    from nightingale.server.server_processes import ServerProcesses, check_workers

    check_workers()
    logging.config.dictConfig(log_config(settings.log_level, as_json=logs_json(settings)))
    with (
        open_listen_socket(settings.host, settings.port, send_timeout_s=settings.send_timeout) as listener,
        TemporaryDirectory(prefix="nightingale-processes-") as folder,
    ):
        target = partial(run_process, load)
        processes = ServerProcesses(listener, settings.workers, target, Path(folder))
        note_address(listener)
        started = asyncio.run(processes.run(lambda: note(f"ready: {settings.workers} processes")))
    if not started:
        raise typer.Exit(1)


def run_process(load: Callable[[], ServerSettings], place: ProcessPlace) -> None:
    """Run one of several server processes; called in that process."""
    import os

    # An interrupt at the terminal is for the parent, which passes it on.
    os.setpgid(0, 0)
    if place.cores:
        os.sched_setaffinity(0, place.cores)
    with exit_on_error():
        own = partial(process_settings, load, place.number)
        run(own(), own, place)


def process_settings(load: Callable[[], ServerSettings], number: int) -> ServerSettings:
    """Return the settings of one process: only the first one serves Wyoming, whose port is not shared."""
    settings = load()
    return settings if number == 0 else settings.model_copy(update={"wyoming": None})


def logs_json(settings: ServerSettings) -> bool:
    return settings.log_format == "json" or (settings.log_format == "auto" and not sys.stderr.isatty())


def note_address(listener: socket.socket) -> None:
    host, port = listener.getsockname()[:2]
    note(f"nightingale listens on http://{f'[{host}]' if ':' in host else host}:{port}")


def run(
    settings: ServerSettings, load: Callable[[], ServerSettings], place: ProcessPlace | None = None
) -> None:
    """Serve until SIGINT or SIGTERM; running requests may finish during the grace period. SIGHUP calls `load`.

    place: that of one of several processes, whose parent hands it its connections.
    """
    import asyncio

    import uvicorn

    from nightingale.server.app import create_app
    from nightingale.server.http_protocol import TimedHttpProtocol
    from nightingale.server.listen_socket import open_listen_socket
    from nightingale.server.logs import log_config
    from nightingale.server.server_processes import ConnectionReceiver, all_pages
    from nightingale.server.service.model_loading import share_heap
    from nightingale.server.service.speech_service import SpeechService, log
    from nightingale.server.settings_reload import reload_settings
    from nightingale.server.websocket_protocol import LimitedWebSocketProtocol

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if not self.started:
                return
            if hangup is not None:
                loop = asyncio.get_running_loop()
                loop.add_signal_handler(hangup, reload_settings, service, load)
            if listener is not None:
                note_address(listener)
            if place is not None:
                self.receiving = asyncio.create_task(ConnectionReceiver(place, self, service).run())
            self.reporting = asyncio.create_task(self.report_ready())

        async def report_ready(self) -> None:
            """Print that the model is ready, and stop the server if it cannot be loaded."""
            while not service.ready:
                if service.failure is not None:
                    self.should_exit = True
                    return
                await asyncio.sleep(0.05)
            if place is not None:
                return
            note(f"ready: {service.model.id}")
            if service.model.notice:
                note(f"note: {service.model.notice}")

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            # uvicorn would close the listening socket and all WebSockets first. Until running requests have
            # finished, keep answering: new requests get 503, and so does /ready.
            started_s = time.monotonic()
            draining = asyncio.create_task(service.drain(settings.grace))
            while not (draining.done() or self.force_exit):
                await asyncio.wait([draining], timeout=0.1)
            if draining.done() and draining.result():
                left = {"speaking": draining.result(), "grace_s": settings.grace}
                log.warning("the grace period is over; running requests are cancelled", extra=left)
            draining.cancel()
            left_s = settings.grace - (time.monotonic() - started_s)
            self.config.timeout_graceful_shutdown = max(1, round(left_s))
            await super().shutdown(sockets)

    with ExitStack() as stack:
        listener = None
        if place is None:
            address = settings.host, settings.port
            listener = stack.enter_context(open_listen_socket(*address, send_timeout_s=settings.send_timeout))
        service = SpeechService(settings)
        pages = None if place is None else partial(all_pages, place, service)
        config = uvicorn.Config(
            create_app(settings, service, metrics_page=pages),
            http=TimedHttpProtocol,
            ws=partial(LimitedWebSocketProtocol, send_timeout_s=settings.send_timeout),  # type: ignore[arg-type]
            root_path=settings.root_path.rstrip("/"),
            log_config=log_config(settings.log_level, as_json=logs_json(settings)),
            access_log=False,  # our own has the request's id, and no query strings
            server_header=False,
            timeout_keep_alive=30,
            ws_max_size=settings.max_body_bytes,
            ws_per_message_deflate=False,  # audio does not compress
            ws_ping_interval=20,
            ws_ping_timeout=120,  # a client that plays in real time answers after the buffered audio
        )
        # uvicorn shuts down at SIGTERM and then raises the signal again, when nothing is left to do.
        signal.signal(signal.SIGTERM, lambda *_: None)
        hangup = getattr(signal, "SIGHUP", None)  # not on Windows
        if hangup is not None:
            signal.signal(hangup, lambda *_: None)  # until the server has started
        share_heap()
        # The engine's thread runs Python between kernels; the event loop must not wait 5 ms for each switch.
        sys.setswitchinterval(0.0005)
        asyncio.run(Server(config).serve([] if listener is None else [listener]))
    if isinstance(service.failure, NightingaleError):
        raise service.failure
    if service.failure is not None:
        raise typer.Exit(1)
