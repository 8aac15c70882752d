"""Several server processes on one machine (`--workers`): a parent hands each connection to one of them.

Each process has its own cores and its own engine, because the stages of one engine do not keep all cores busy. They
share the files of this machine: voices, keys, and the characters that tenants have used. A connection goes to the
process with the fewest requests; from then on parent and client have nothing to do with each other. A process that
dies is started again, unless it was never ready.
"""

from __future__ import annotations

import asyncio
import json
import logging
import multiprocessing
import os
import signal
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Final

import uvicorn

from nightingale.errors import ConfigError
from nightingale.files import replace_file
from nightingale.server.app import metrics_page
from nightingale.server.merged_metrics import merge_pages
from nightingale.server.service.speech_service import SpeechService

log = logging.getLogger("nightingale.server")

REPORT_S: Final = 0.05
"""Time between two reports of a process, if its load has changed."""
METRICS_S: Final = 1.0
"""The largest age of the metrics of the other processes."""
BACKLOG: Final = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessPlace:
    """The number, cores, folder and channel that a server process gets from its parent."""

    number: int
    cores: Sequence[int]
    """The cores that it runs on; empty where the system cannot say."""
    folder: Path
    """The folder in which all processes write their metrics."""
    channel: socket.socket
    """Connections come in, reports go out."""


def check_workers() -> None:
    """Raise ConfigError if this system has only one server process."""
    if not hasattr(socket, "send_fds"):
        raise ConfigError("more than one worker needs Linux or macOS", allowed="--workers 1")


def cores_of(number: int, count: int) -> list[int]:
    """Return the share of this process's cores that one of its children gets."""
    if not hasattr(os, "sched_getaffinity"):
        return []
    cores = sorted(os.sched_getaffinity(0))
    return cores[number::count] or [cores[number % len(cores)]]


class ConnectionReceiver:
    """The part of a server process that takes connections from its parent."""

    def __init__(self, place: ProcessPlace, server: uvicorn.Server, service: SpeechService) -> None:
        self._place, self._server, self._service = place, server, service
        self._accepted = 0
        self._tasks: set[asyncio.Task[object]] = set()

    async def run(self) -> None:
        """Take connections and report the load until the parent ends; then the server is to end, too."""
        loop, channel = asyncio.get_running_loop(), self._place.channel
        channel.setblocking(False)
        loop.add_reader(channel, self._receive)
        reported, written_s = b"", 0.0
        while not self._server.should_exit:
            report = {
                "ready": self._service.ready,
                "active": self._service.metrics.active,
                "accepted": self._accepted,
            }
            if (line := json.dumps(report).encode() + b"\n") != reported:
                reported = line
                with suppress(OSError):
                    channel.send(line)
            if loop.time() >= written_s + METRICS_S:
                written_s = loop.time()
                await asyncio.to_thread(self._write_page)
            await asyncio.sleep(REPORT_S)

    def _receive(self) -> None:
        try:
            data, handles, _, _ = socket.recv_fds(self._place.channel, 1, 1)
        except BlockingIOError:
            return
        if not data:
            asyncio.get_running_loop().remove_reader(self._place.channel)
            self._server.should_exit = True
        for handle in handles:
            self._accepted += 1
            task = asyncio.create_task(self._serve(socket.socket(fileno=handle)))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _serve(self, connection: socket.socket) -> None:
        loop, config = asyncio.get_running_loop(), self._server.config

        def create_protocol() -> asyncio.Protocol:
            state = {"server_state": self._server.server_state, "app_state": self._server.lifespan.state}
            return config.http_protocol_class(config=config, **state, _loop=loop)  # type: ignore[call-arg]

        with suppress(OSError):  # the client has left already
            await loop.connect_accepted_socket(create_protocol, connection)

    def _write_page(self) -> None:
        # Not `write_whole`, which waits for the disk: the next page comes in a second.
        page = self._place.folder / f"{self._place.number}.metrics"
        unfinished = page.with_suffix(".part")
        unfinished.write_bytes(metrics_page(self._service))
        replace_file(unfinished, page)


async def all_pages(place: ProcessPlace, service: SpeechService) -> bytes:
    """Return the metrics of all processes; those of the others are up to METRICS_S old."""
    return await asyncio.to_thread(_merged_pages, place, service)


def _merged_pages(place: ProcessPlace, service: SpeechService) -> bytes:
    pages = {path.stem: path.read_text(encoding="utf-8") for path in place.folder.glob("*.metrics")}
    pages[str(place.number)] = metrics_page(service).decode()
    return merge_pages(pages, label="process")


@dataclass(eq=False, slots=True)
class ChildProcess:
    """A server process as its parent sees it."""

    process: BaseProcess
    channel: socket.socket
    ready: bool = False
    active: int = 0
    accepted: int = 0
    handed: int = 0

    @property
    def load(self) -> int:
        """Requests that it serves, and connections that it has not accepted yet."""
        return self.active + self.handed - self.accepted

    def hand_over(self, connection: socket.socket) -> bool:
        """Give a connection to the process; return whether that was possible."""
        try:
            socket.send_fds(self.channel, [b"c"], [connection.fileno()])
        except OSError:  # it takes none now, or it has ended
            return False
        self.handed += 1
        return True


class ServerProcesses:
    """The parent: it starts processes, hands out connections and passes signals on."""

    def __init__(
        self, listener: socket.socket, count: int, target: Callable[[ProcessPlace], None], folder: Path
    ) -> None:
        """target: what each process runs; it is imported there, so it must be a function of a module."""
        self._listener, self._count, self._target, self._folder = listener, count, target, folder
        listener.listen(BACKLOG)
        listener.setblocking(False)
        self._children: dict[int, ChildProcess] = {}
        self._stopping = self._failed = False

    async def run(self, on_ready: Callable[[], None]) -> bool:
        """Serve until SIGINT or SIGTERM; return whether all processes could be started."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stop)
        loop.add_signal_handler(signal.SIGHUP, self._send_all, signal.SIGHUP)
        accepting = asyncio.create_task(self._accept())
        reporting = asyncio.create_task(self._report_ready(on_ready))
        await asyncio.gather(*(self._keep_running(number) for number in range(self._count)))
        accepting.cancel()
        reporting.cancel()
        return not self._failed

    def _stop(self) -> None:
        self._stopping = True
        self._send_all(signal.SIGTERM)

    def _send_all(self, number: signal.Signals) -> None:
        for child in self._children.values():
            if child.process.pid is not None:
                with suppress(ProcessLookupError):
                    os.kill(child.process.pid, number)

    async def _report_ready(self, on_ready: Callable[[], None]) -> None:
        while len(self._children) < self._count or not all(c.ready for c in self._children.values()):
            await asyncio.sleep(REPORT_S)
        on_ready()

    async def _keep_running(self, number: int) -> None:
        while not self._stopping:
            child = self._children[number] = self._start(number)
            await self._read_reports(child)
            await asyncio.to_thread(child.process.join)
            child.channel.close()
            del self._children[number]
            if not child.ready and not self._stopping:
                self._failed = True
                self._stop()
            elif not self._stopping:
                log.error("a server process has ended and is started again", extra={"number": number})

    def _start(self, number: int) -> ChildProcess:
        ours, theirs = socket.socketpair()
        cores = cores_of(number, self._count)
        place = ProcessPlace(number=number, cores=cores, folder=self._folder, channel=theirs)
        process = multiprocessing.get_context("spawn").Process(target=self._target, args=(place,))
        process.start()
        theirs.close()
        ours.setblocking(False)
        return ChildProcess(process, ours)

    async def _read_reports(self, child: ChildProcess) -> None:
        """Read until the process ends."""
        loop, data = asyncio.get_running_loop(), b""
        with suppress(OSError):
            while received := await loop.sock_recv(child.channel, 4096):
                *lines, data = (data + received).split(b"\n")
                if lines:
                    said = json.loads(lines[-1])
                    child.ready |= said["ready"]
                    child.active, child.accepted = said["active"], said["accepted"]

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            connection, _ = await loop.sock_accept(self._listener)
            with connection:
                while not self._hand_over(connection):
                    await asyncio.sleep(REPORT_S)

    def _hand_over(self, connection: socket.socket) -> bool:
        children = sorted(
            self._children.values(), key=lambda child: (not child.ready, child.load, child.handed)
        )
        return any(child.hand_over(connection) for child in children)
