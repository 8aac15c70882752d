"""`nightingale serve`: the engine behind HTTP, until it is told to stop."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nightingale.cli import options
from nightingale.cli.talk import note, read_options
from nightingale.errors import ConfigError, NightingaleError

if TYPE_CHECKING:
    import socket

    from nightingale.server.settings import Settings

# Every setting that is a flag, with no default of its own: what is not given is looked for in the environment
# and in the file (nightingale.server.settings). A test holds the two lists together.
_SET = {"show_default": False}
Text = str | None
Number = int | None
Switch = bool | None


def serve(
    config: Annotated[Path | None, typer.Option(help="A TOML file with settings.", **_SET)] = None,
    host: Annotated[Text, typer.Option(help="Address to listen on; 127.0.0.1 if not set.", **_SET)] = None,
    port: Annotated[Number, typer.Option(help="Port to listen on; 8880 if not set.", **_SET)] = None,
    root_path: Annotated[Text, typer.Option(help="Path prefix of a proxy in front.", **_SET)] = None,
    model: options.Model = None,
    option: options.Choices = None,
    device: Annotated[Text, typer.Option(help="auto, cpu, cuda, cuda:1, mps.", **_SET)] = None,
    profile: options.Profile = None,
    offline: Annotated[Switch, typer.Option("--offline", help="Never touch the network.")] = None,
    voice: Annotated[Text, typer.Option("-v", "--voice", help="Who speaks if not asked.", **_SET)] = None,
    voice_aliases: Annotated[Text, typer.Option(metavar="ALIAS=VOICE,…", help="More names.", **_SET)] = None,
    api_key_file: Annotated[Path | None, typer.Option(help="File of accepted keys.", **_SET)] = None,
    insecure: Annotated[
        Switch, typer.Option("--insecure", help="Serve other machines without a key.", **_SET)
    ] = None,
    cors: Annotated[
        list[str] | None, typer.Option(metavar="ORIGIN", help="Pages allowed in.", **_SET)
    ] = None,
    slots: Annotated[Number, typer.Option(help="Requests spoken at the same time.", **_SET)] = None,
    max_queue: Annotated[Number, typer.Option(help="Requests that may wait.", **_SET)] = None,
    keep_alive: Annotated[
        Text, typer.Option(metavar="5m|0|-1", help="Unload the model when idle for so long.", **_SET)
    ] = None,
    grace: Annotated[Text, typer.Option(help="How long a shutdown lets speech finish.", **_SET)] = None,
    send_timeout: Annotated[Text, typer.Option(help="Drop a listener that takes nothing.", **_SET)] = None,
    max_text_chars: Annotated[Number, typer.Option(help="Longest text.", **_SET)] = None,
    max_body_bytes: Annotated[Number, typer.Option(help="Largest request.", **_SET)] = None,
    max_upload_bytes: Annotated[Number, typer.Option(help="Largest upload.", **_SET)] = None,
    max_clip_seconds: Annotated[float | None, typer.Option(help="Longest clip.", **_SET)] = None,
    max_voices: Annotated[Number, typer.Option(help="Most voices kept by upload.", **_SET)] = None,
    uploads: Annotated[
        Switch, typer.Option("--uploads/--no-uploads", help="Voices over HTTP.", **_SET)
    ] = None,
    wyoming: Annotated[
        Text, typer.Option(metavar="URI", help="Also speak Wyoming: tcp://127.0.0.1:10200.", **_SET)
    ] = None,
    page: Annotated[Switch, typer.Option("--page/--no-page", help="The page at /.", **_SET)] = None,
    log_level: Annotated[Text, typer.Option(help="debug, info, warning, error.", **_SET)] = None,
    log_format: Annotated[Text, typer.Option(help="auto, text, json.", **_SET)] = None,
) -> None:
    """Serve OpenAI's audio API, sockets and a page (docs/http-api.md).

    Each flag can also be a variable (NIGHTINGALE_PORT) or a key of nightingale.toml: docs/configuration.md.
    """
    flags: dict[str, Any] = {key: value for key, value in locals().items() if key != "config"}
    flags["option"] = read_options(option) if option else None
    try:
        from nightingale.server.settings import Settings, unknown_keys
    except ImportError as error:
        raise ConfigError(
            "the server's packages are not installed",
            got=str(error),
            allowed="an installation with the extra `server`",
            fix="pip install 'nightingale-tts[server]'",
        ) from error
    settings = Settings.load(config, **flags)
    settings.check_bind()
    if settings.wyoming:
        from nightingale.server.wyoming_wire import check_wyoming

        check_wyoming(settings.wyoming, insecure=settings.insecure)
    for name in unknown_keys(config):
        note(f"warning: nobody reads the setting {name}")
    run(settings)


def run(settings: Settings) -> None:
    """Until SIGINT or SIGTERM; what is being said may finish for a while."""
    import asyncio

    import uvicorn

    from nightingale.server.app import create_app
    from nightingale.server.listening import listening
    from nightingale.server.logs import log_config
    from nightingale.server.speaker import Speaker, log

    class Server(uvicorn.Server):
        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            # uvicorn would begin with closing the door and hanging up on every WebSocket. While speech
            # finishes, over HTTP or not, whoever comes is told why there is nothing: 503, also by /ready.
            began_s = time.monotonic()
            finishing = asyncio.create_task(speaker.finish(settings.grace))
            while not (finishing.done() or self.force_exit):
                await asyncio.wait([finishing], timeout=0.1)
            if finishing.done() and finishing.result():
                cut = {"speaking": finishing.result(), "grace_s": settings.grace}
                log.warning("the time to finish is over; speech is cut off", extra=cut)
            finishing.cancel()
            left_s = settings.grace - (time.monotonic() - began_s)
            self.config.timeout_graceful_shutdown = max(1, round(left_s))
            await super().shutdown(sockets)

    with listening(settings.host, settings.port, patience_s=settings.send_timeout) as door:
        as_json = settings.log_format == "json" or (settings.log_format == "auto" and not sys.stderr.isatty())
        speaker = Speaker(settings)
        config = uvicorn.Config(
            create_app(settings, speaker),
            root_path=settings.root_path.rstrip("/"),
            log_config=log_config(settings.log_level, as_json=as_json),
            access_log=False,  # our own has the request's id, and no query strings
            server_header=False,
            timeout_keep_alive=30,
            ws_max_size=settings.max_body_bytes,
            ws_per_message_deflate=False,  # sound does not deflate
            ws_ping_interval=20,
            ws_ping_timeout=120,  # a client that plays at real time answers behind the sound
        )
        # uvicorn stops in good order at SIGTERM, then raises it again; by then nothing is left to end.
        signal.signal(signal.SIGTERM, lambda *_: None)
        # The engine's thread is Python between its kernels; the loop must not wait 5 ms for each turn of it.
        sys.setswitchinterval(0.0005)
        asyncio.run(_serve(Server(config), speaker, door))
    if isinstance(speaker.failure, NightingaleError):
        raise speaker.failure
    if speaker.failure is not None:
        raise typer.Exit(1)


async def _serve(server: Any, speaker: Any, door: socket.socket) -> None:
    """A server without a model to serve stops."""
    import asyncio

    async def watch() -> None:
        while not server.started:
            await asyncio.sleep(0.05)
        host, port = door.getsockname()[:2]
        note(f"nightingale listens on http://{f'[{host}]' if ':' in host else host}:{port}")
        while not speaker.ready:
            if speaker.failure is not None:
                server.should_exit = True
                return
            await asyncio.sleep(0.05)
        note(f"ready: {speaker.model_name}")
        if speaker.notice:
            note(f"note: {speaker.notice}")

    watching = asyncio.create_task(watch())
    try:
        await server.serve(sockets=[door])
    finally:
        watching.cancel()
