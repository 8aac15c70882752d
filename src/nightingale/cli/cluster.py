"""`nightingale cluster`: serve from, and speak libraries of text on, a Ray cluster (docs/cluster.md)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

from nightingale.cli import options
from nightingale.cli.console import note, parse_options, progress_line
from nightingale.cli.options import argument, option
from nightingale.cli.serve import read_flags
from nightingale.errors import ConfigError
from nightingale.install import install_command

Text = str | None
Number = int | None
Address = Annotated[
    str | None,
    option("Address of a Ray cluster, such as 10.0.0.5:6379.", default="RAY_ADDRESS, or Ray on this machine"),
]
Voices = Annotated[str | None, option("Folder or URL of the voices that all nodes share.", metavar="DIR|URL")]
SERVER_FLAGS = (
    "host",
    "port",
    "model",
    "option",
    "device",
    "profile",
    "voice",
    "api_key_file",
    "keys_file",
    "insecure",
)
"""Settings of the server that are flags of `cluster serve`."""


def serve(
    replicas: Annotated[str, option("A number, or a range: 1..8; 0..8 scales to zero.", default=True)] = "1",
    gpus_per_replica: Annotated[float, option("GPUs that each replica reserves.", default=True)] = 0.0,
    cpus_per_replica: Annotated[float, option("Cores that each replica reserves.", default=True)] = 1.0,
    listeners_per_replica: Annotated[Number, option("Listeners of one replica.", default="measured")] = None,
    address: Address = None,
    voices: Voices = None,
    downscale_delay: Annotated[
        float, option("Seconds with too few listeners before replicas are removed.", default=True)
    ] = 120.0,
    grace: Annotated[
        float, option("Seconds in which a replica that stops lets running speech finish.", default=True)
    ] = 600.0,
    config: Annotated[Path | None, option("A TOML file with settings of the server.")] = None,
    **settings: Annotated[Any, *SERVER_FLAGS],
) -> None:
    """Serve from replicas on a Ray cluster, with the routes of `nightingale serve`.

    Other settings of the server are read from the environment and from nightingale.toml (docs/running.md).
    """
    try:
        from nightingale.ray.cluster_settings import ClusterSettings
        from nightingale.ray.serving import serve_cluster
        from nightingale.server.settings import ServerSettings
    except ImportError as error:
        raise ConfigError(
            "the packages of the cluster are not installed", got=str(error), fix=install_command("ray")
        ) from error
    server = ServerSettings.load(config, **read_flags(settings))
    server.check_bind()
    if server.wyoming:
        raise ConfigError(
            "Wyoming's port cannot be served from a cluster",
            got=f"--wyoming {server.wyoming}",
            fix="Leave it out, or serve Wyoming with `nightingale serve` on one machine.",
        )
    cluster = ClusterSettings.load(
        {
            "replicas": replicas,
            "gpus_per_replica": gpus_per_replica,
            "cpus_per_replica": cpus_per_replica,
            "listeners_per_replica": listeners_per_replica,
            "voices": voices,
            "downscale_delay_s": downscale_delay,
            "grace_s": grace,
            "server": plain_settings(server),
        }
    )
    serve_cluster(cluster, server, address, note)


def plain_settings(server: Any) -> dict[str, Any]:
    """Return the server's settings as values that travel to other machines."""
    plain: dict[str, Any] = server.model_dump()
    if server.api_key is not None:
        plain["api_key"] = server.api_key.get_secret_value()
    return plain


def speak(
    source: Annotated[
        str,
        argument("INPUT", "A .jsonl, .json, .parquet or .csv file, or a folder of .txt files; or its URL."),
    ],
    out: Annotated[str, option("Folder or URL for the audio, which all nodes share.", "-o", "--out")],
    file_format: Annotated[str, option("flac, opus or wav.", "--format", default=True)] = "flac",
    workers: Annotated[int, option("Engines that speak at the same time.", default=True)] = 1,
    gpus_per_worker: Annotated[float, option("GPUs that each engine reserves.", default=True)] = 0.0,
    cpus_per_worker: Annotated[float, option("Cores that each engine reserves.", default=True)] = 1.0,
    batch_rows: Annotated[int, option("Rows that an engine is given at a time.", default=True)] = 64,
    shards: Annotated[bool, option("Write tar archives instead of a file per row.", "--shards")] = False,
    address: Address = None,
    voices: Voices = None,
    model: options.Model = None,
    choices: options.Choices = None,
    voice: Annotated[Text, option("Voice of rows that name none.", "-v", "--voice")] = None,
    language: Annotated[Text, option("Language of rows that name none.", "-l", "--language")] = None,
    seed: Annotated[Number, option("Seed of rows that have none.", default="from the row's contents")] = None,
    profile: options.Profile = None,
    device: options.Device = "auto",
    offline: options.Offline = False,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Speak a library of text on a Ray cluster. Run it again to continue: only what is missing is spoken.

    A row has a text (column text, input or sentence) and may have id, voice, language, and the numbers among the
    options of `nightingale say`, such as seed and speed.
    """
    try:
        from nightingale.ray.batch_run import BatchSettings, run_batch
    except ImportError as error:
        raise ConfigError(
            "the packages of the cluster are not installed", got=str(error), fix=install_command("ray")
        ) from error
    server = {"model": model, "option": parse_options(choices), "profile": profile, "device": device}
    defaults = {"voice": voice, "language": language, "seed": seed}
    settings = BatchSettings(
        source=source,
        out=out,
        file_format=file_format,
        defaults={name: value for name, value in defaults.items() if value is not None},
        server={name: value for name, value in {**server, "offline": offline}.items() if value is not None},
        workers=workers,
        gpus_per_worker=gpus_per_worker,
        cpus_per_worker=cpus_per_worker,
        batch_rows=batch_rows,
        shards=shards,
        voices=voices,
    )
    with progress_line("speaking …", quiet=quiet) as show:
        result = run_batch(settings, address, lambda *now: show(progress_text(*now)))
    if not quiet:
        note(
            f"{out}: {result.rows} rows, {result.skipped} of them from earlier runs, {result.dead} dead letters; "
            f"{result.seconds / 3600:.2f} h of audio in {result.took_s:.0f} s"
        )
    if as_json:
        names = ("rows", "dead", "skipped", "seconds", "took_s")
        print(json.dumps({name: round(getattr(result, name), 3) for name in names}))


def progress_text(totals: dict[str, float], chars: float, took_s: float) -> str:
    """Return the progress of a batch in words: the share that is done, the rate and the time that is left."""
    if not totals.get("chars") or took_s <= 0:
        return f"{int(totals.get('rows', 0))} rows"
    share = min(1.0, totals["chars"] / chars) if chars else 1.0
    minutes, seconds = divmod(round(took_s * (1 - share) / share), 60)
    rate = totals["seconds"] / took_s  # hours of audio per hour
    failed = f", {int(totals['failed'])} failed" if totals["failed"] else ""
    done = f"{100 * share:.0f} %, {int(totals['rows'])} rows{failed}"
    return f"{done}, {rate:.1f} h of audio per hour, {minutes}:{seconds:02} left"
