"""All settings of the server, in one class.

A flag of `nightingale serve` overrides the environment (NIGHTINGALE_…), which overrides a `.env` file in the
working folder, which overrides `nightingale.toml`, which overrides the default. docs/running.md has a table of all
settings, which is made from this file.
"""

from __future__ import annotations

import ipaddress
import os
import re
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, ValidationError
from pydantic_core import PydanticCustomError
from pydantic_settings import (
    BaseSettings,
    DotEnvSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from nightingale.errors import ConfigError
from nightingale.files import default_config

PREFIX = "NIGHTINGALE_"
ENV_FILE = ".env"
NOT_SETTINGS = {"NIGHTINGALE_HOME", "NIGHTINGALE_JUDGES", "NIGHTINGALE_UPSTREAM_PYTHON", "NIGHTINGALE_VOICES"}
"""Variables that other packages read, from the environment only."""
TABLES = {"say"}
"""Tables of nightingale.toml that commands other than `serve` read."""
MIB = 1 << 20


def parse_seconds(value: Any) -> Any:
    """Convert "30", "30s", "5m" or "2h" to seconds; leave other types to pydantic."""
    if isinstance(value, str) and (match := re.fullmatch(r"(-?\d+(?:\.\d+)?)\s*(s|m|h)?", value.strip())):
        return float(match[1]) * {"s": 1, "m": 60, "h": 3600}[match[2] or "s"]
    return value


def parse_list(value: Any) -> Any:
    """Split a comma-separated string; leave other types to pydantic."""
    return [item.strip() for item in value.split(",") if item.strip()] if isinstance(value, str) else value


def parse_pairs(value: Any) -> Any:
    """Convert "KEY=VALUE,KEY=VALUE" or a list of such pairs to a dict."""
    items = parse_list(value)
    if isinstance(items, list):
        return {key.strip(): word.strip() for key, _, word in (str(item).partition("=") for item in items)}
    return items


def lowercase_aliases(aliases: dict[str, str]) -> dict[str, str]:
    """Lowercase both sides, because voice names in requests are lowercased (voices/blend.py)."""
    lowered = {alias.lower(): voice.lower() for alias, voice in aliases.items()}
    if any(lowered[alias.lower()] != voice.lower() for alias, voice in aliases.items()):
        raise PydanticCustomError("aliases", "aliases that differ in more than upper and lower case")
    return lowered


Seconds = Annotated[float, BeforeValidator(parse_seconds)]
# NoDecode: without it, pydantic would expect JSON in the environment.
StringList = Annotated[list[str], NoDecode, BeforeValidator(parse_list)]
StringMap = Annotated[dict[str, str], NoDecode, BeforeValidator(parse_pairs)]


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a host, given as an address or a name."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def setting_name(error: ValidationError) -> str:
    """Return the name of the first setting that an error is about."""
    return ".".join(str(part) for part in error.errors()[0]["loc"])


def setting_error(error: ValidationError, *, fix: str) -> ConfigError:
    """Return the error of the first setting whose value is invalid."""
    first = error.errors()[0]
    return ConfigError(
        f"the setting {setting_name(error)!r} has an invalid value",
        got=repr(first["input"])[:100],
        allowed=first["msg"],
        fix=fix,
    )


class ServerSettings(BaseSettings):
    """The settings of one server. Each field is a flag, a variable and a key of the file of that name."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_file=ENV_FILE,
        env_file_encoding="utf-8",
        extra="ignore",
        frozen=True,
        validate_default=True,
    )

    host: str = Field("127.0.0.1", description="Address to listen on. Any but loopback requires a key.")
    port: int = Field(8880, ge=0, le=65535, description="Port to listen on; 0 picks a free one.")
    workers: int = Field(
        1,
        ge=1,
        le=256,
        description="Server processes, each with a model and its own cores (docs/running.md).",
    )
    root_path: str = Field("", description="Path prefix that a reverse proxy strips.")

    model: str | None = Field(None, description="A name of `nightingale models list`, or a folder.")
    option: StringMap = Field({}, description="Options of the model, as KEY=VALUE.")
    device: str = Field("auto", description="auto, cpu, cuda, cuda:1, mlx, mps.")
    profile: str | None = Field(None, description="exact, balanced or fast; default: the model's own.")
    stream: Literal["segment", "block"] | None = Field(
        None, description="Render text segments whole, or in blocks; default: the model's own."
    )
    offline: bool = Field(False, description="Never use the network.")
    watermark: bool = Field(False, description="Mark all audio; needs the package resemble-perth.")
    voice: str | None = Field(None, description="Voice for requests that name none.")
    voice_aliases: Annotated[StringMap, AfterValidator(lowercase_aliases)] = Field(
        {}, description="More names for voices, as ALIAS=VOICE; case is ignored."
    )

    lexicon: Path | None = Field(
        None, description="A TOML file of words and their respellings, for all requests."
    )

    api_key: SecretStr | None = Field(
        None, description="Key that clients must send, with all rights; not a flag."
    )
    api_key_file: Path | None = Field(
        None, description="File with accepted keys, one per line; all are alike."
    )
    keys_file: Path | None = Field(
        None,
        description="TOML file of tenants with the hashes of their keys and their limits (docs/running.md).",
    )
    insecure: bool = Field(False, description="Allow an address other than loopback without a key.")
    cors: StringList = Field([], description="Origins whose pages may call, such as https://chat.example.")
    hosts: StringList = Field(
        [],
        description="Names that a proxy on this machine passes on as Host; * allows any. Needed only for a "
        "loopback address without a key.",
    )

    slots: Annotated[int, Field(ge=1, le=256)] | None = Field(
        None, description="Requests that are decoded at the same time; default: as many as suit the device."
    )
    max_streams: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(
        "auto",
        description="Requests that are synthesized at once; auto: as many as stay supplied with audio.",
    )
    max_queue: int = Field(64, ge=0, le=100_000, description="Requests that may wait; more are answered 429.")
    keep_alive: Seconds = Field(-1.0, ge=-1, description="Unload an idle model after this long; -1: never.")
    grace: Seconds = Field(20.0, ge=0, description="How long a shutdown waits for running requests.")
    send_timeout: Seconds = Field(60.0, gt=0, description="Disconnect clients that stall for this long.")

    max_text_chars: int = Field(10_000, ge=1, description="Maximum length of one request's text.")
    max_body_bytes: int = Field(MIB, ge=1024, description="Maximum request body, except uploads.")
    max_upload_bytes: int = Field(20 * MIB, ge=1024, description="Maximum upload of a reference clip.")
    max_clip_seconds: float = Field(120.0, gt=0, le=600, description="Maximum length of a reference clip.")
    max_voices: int = Field(1000, ge=0, description="Maximum number of uploaded voices, for each tenant.")
    uploads: bool = Field(True, description="Allow adding and removing voices over HTTP.")

    wyoming: str | None = Field(None, description="Also serve Wyoming here, such as tcp://127.0.0.1:10200.")
    tracing: bool = Field(
        False, description="Record OpenTelemetry spans, as the variables OTEL_… say; needs the extra otel."
    )
    wyoming_tenant: str | None = Field(
        None, description="Tenant of the key file that clients of Wyoming, who cannot send a key, act as."
    )
    page: bool = Field(True, description="Serve the web page at /.")
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Only debug logs the text of requests."
    )
    log_format: Literal["auto", "text", "json"] = Field(
        "auto", description="auto: text on a terminal, JSON elsewhere."
    )

    @classmethod
    def load(cls, config: Path | None = None, **flags: Any) -> Self:
        """Read the settings of this process. A flag that is None was not given."""
        path = config or default_config()
        if config is not None and not config.is_file():
            raise ConfigError("the configuration file does not exist", got=str(config), fix="Check the path.")
        # pydantic reads sources per class, so the path of the file needs a subclass.
        located = type(cls.__name__, (cls,), {"model_config": SettingsConfigDict(toml_file=path)})
        try:
            loaded: Self = located(**{key: value for key, value in flags.items() if value is not None})
        except ValidationError as error:
            name = setting_name(error)
            fix = f"Correct --{name.replace('_', '-')}, {PREFIX}{name.upper()} or {name} in {path}."
            raise setting_error(error, fix=fix) from error
        except ValueError as error:
            raise ConfigError(
                "the configuration file is not valid TOML", got=str(error), fix=f"Correct {path}."
            ) from error
        return loaded

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003, pydantic's signature
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, env_settings, dotenv_settings, TomlConfigSettingsSource(settings_cls)

    @property
    def keys(self) -> tuple[str, ...]:
        """Return the accepted keys; an empty tuple means that no key is required."""
        found = [self.api_key.get_secret_value()] if self.api_key is not None else []
        if self.api_key_file is not None:
            try:
                lines = self.api_key_file.read_text(encoding="utf-8").splitlines()
            except (OSError, UnicodeError) as error:
                raise ConfigError(
                    "the key file cannot be read", got=str(error), fix="Correct --api-key-file."
                ) from error
            found += [line.strip() for line in lines if line.strip() and not line.startswith("#")]
            if not found:
                raise ConfigError(
                    "the key file contains no key",
                    got=str(self.api_key_file),
                    fix="Add one, for example with `openssl rand -hex 24`.",
                )
        return tuple(key for key in found if key)

    def check_bind(self) -> None:
        """Refuse an address that other machines can reach, unless there is a key or `insecure` is set."""
        if not (is_loopback(self.host) or self.keys or self.keys_file or self.insecure):
            raise ConfigError(
                "other machines can reach this address, and no key is set",
                got=f"--host {self.host}",
                allowed="loopback, or any address with a key or --insecure",
                fix="Set NIGHTINGALE_API_KEY, --api-key-file or --keys-file, or pass --insecure to allow everyone.",
            )


def unknown_keys(config: Path | None = None) -> list[str]:
    """Return names in the environment and the files that no setting has; they are probably misspelled."""
    known = set(ServerSettings.model_fields)
    names = {PREFIX + name.upper() for name in known}
    found = [
        name for name in os.environ if name.startswith(PREFIX) and name.upper() not in names | NOT_SETTINGS
    ]
    # pydantic gives the names of the .env file in lower case.
    dotenv = [name.upper() for name in DotEnvSettingsSource(ServerSettings).env_vars]
    found += [f"{name} in {ENV_FILE}" for name in dotenv if name.startswith(PREFIX) and name not in names]
    path = config or default_config()
    if path.is_file():
        found += [
            f"{key} in {path}" for key in tomllib.loads(path.read_text("utf-8")) if key not in known | TABLES
        ]
    return sorted(found)
