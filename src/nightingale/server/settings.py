"""Everything that can be set about a server, in one class.

A flag of `nightingale serve` wins over the environment (NIGHTINGALE_…), which wins over a `.env` file in the
working folder, which wins over `nightingale.toml`, which wins over the default. docs/configuration.md is made
from this file.
"""

from __future__ import annotations

import ipaddress
import os
import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import platformdirs
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

PREFIX = "NIGHTINGALE_"
ENV_FILE = ".env"
OTHERS = {"NIGHTINGALE_HOME", "NIGHTINGALE_JUDGES", "NIGHTINGALE_UPSTREAM_PYTHON"}
"""Variables that belong to other rooms, which read the environment and no file."""
MIB = 1 << 20


def read_seconds(value: Any) -> Any:
    """30, "30", "30s", "5m", "2h"; -1 is for ever."""
    if isinstance(value, str) and (match := re.fullmatch(r"(-?\d+(?:\.\d+)?)\s*(s|m|h)?", value.strip())):
        return float(match[1]) * {"s": 1, "m": 60, "h": 3600}[match[2] or "s"]
    return value


def read_list(value: Any) -> Any:
    """A list, or its items with commas between them."""
    return [item.strip() for item in value.split(",") if item.strip()] if isinstance(value, str) else value


def read_pairs(value: Any) -> Any:
    """A table, or KEY=VALUE with commas between them."""
    items = read_list(value)
    if isinstance(items, list):
        return {key.strip(): word.strip() for key, _, word in (str(item).partition("=") for item in items)}
    return items


def fold_aliases(aliases: dict[str, str]) -> dict[str, str]:
    """In lower case, as the names in requests are read (aliases.read_blend)."""
    folded = {alias.lower(): voice.lower() for alias, voice in aliases.items()}
    if any(folded[alias.lower()] != voice.lower() for alias, voice in aliases.items()):
        raise PydanticCustomError("aliases", "aliases that differ in more than their case")
    return folded


Seconds = Annotated[float, BeforeValidator(read_seconds)]
# NoDecode: the environment would otherwise have to be JSON.
Words = Annotated[list[str], NoDecode, BeforeValidator(read_list)]
Pairs = Annotated[dict[str, str], NoDecode, BeforeValidator(read_pairs)]


def default_config() -> Path:
    return Path(platformdirs.user_config_dir("nightingale")) / "nightingale.toml"


class Settings(BaseSettings):
    """What a server is told. Each field is a flag, a variable and a key of the file, by the same name."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_file=ENV_FILE, extra="ignore", frozen=True, validate_default=True
    )

    host: str = Field("127.0.0.1", description="Address to listen on. Other than loopback needs a key.")
    port: int = Field(8880, ge=0, le=65535, description="Port to listen on; 0 takes a free one.")
    root_path: str = Field("", description="Path prefix that a proxy in front takes away.")

    model: str | None = Field(None, description="A name of `nightingale models list`, or a folder.")
    option: Pairs = Field({}, description="Choices within the model, as KEY=VALUE.")
    device: str = Field("auto", description="auto, cpu, cuda, cuda:1, mps.")
    profile: str | None = Field(None, description="exact, balanced or fast; the model's own if not set.")
    offline: bool = Field(False, description="Never touch the network.")
    voice: str | None = Field(None, description="Who speaks when a request names no voice.")
    voice_aliases: Annotated[Pairs, AfterValidator(fold_aliases)] = Field(
        {}, description="More names for voices, as ALIAS=VOICE; case does not matter."
    )

    api_key: SecretStr | None = Field(None, description="Key that clients must send. Never a flag.")
    api_key_file: Path | None = Field(None, description="File with accepted keys, one to a line.")
    insecure: bool = Field(False, description="Allow an address other than loopback without a key.")
    cors: Words = Field([], description="Origins whose pages may call, such as https://chat.example.")

    slots: int = Field(8, ge=1, le=256, description="Requests spoken at the same time.")
    max_queue: int = Field(64, ge=0, le=100_000, description="Requests that may wait; more are answered 429.")
    keep_alive: Seconds = Field(
        -1.0, ge=-1, description="Unload the model after this long without work (5m); -1 is never."
    )
    grace: Seconds = Field(20.0, ge=0, description="How long a shutdown lets speech finish.")
    send_timeout: Seconds = Field(
        60.0, gt=0, description="A listener that takes nothing for this long is dropped."
    )

    max_text_chars: int = Field(10_000, ge=1, description="Longest text of one request.")
    max_body_bytes: int = Field(MIB, ge=1024, description="Largest request body, uploads aside.")
    max_upload_bytes: int = Field(20 * MIB, ge=1024, description="Largest upload of a clip.")
    max_clip_seconds: float = Field(120.0, gt=0, le=600, description="Longest clip that becomes a voice.")
    max_voices: int = Field(1000, ge=0, description="Voices that may be kept by upload.")
    uploads: bool = Field(True, description="Whether voices may be added and removed over HTTP.")

    wyoming: str | None = Field(None, description="Also speak Wyoming here, such as tcp://127.0.0.1:10200.")
    page: bool = Field(True, description="Serve the page at /.")
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="debug also logs the text of requests; the others never do."
    )
    log_format: Literal["auto", "text", "json"] = Field(
        "auto", description="auto is text on a terminal and JSON elsewhere."
    )

    @classmethod
    def load(cls, config: Path | None = None, **flags: Any) -> Self:
        """The settings of this process. A flag that is None was not given."""
        path = config if config is not None else default_config()
        if config is not None and not config.is_file():
            raise ConfigError(
                "no such configuration file", got=str(config), allowed="a TOML file", fix="Check the path."
            )
        # The file's path travels in a subclass, because pydantic reads sources per class.
        placed = type(cls.__name__, (cls,), {"model_config": SettingsConfigDict(toml_file=path)})
        try:
            loaded: Self = placed(**{key: value for key, value in flags.items() if value is not None})
        except ValidationError as error:
            first = error.errors()[0]
            name = ".".join(str(part) for part in first["loc"])
            raise ConfigError(
                f"the setting {name!r} cannot be right",
                got=repr(first["input"])[:100],
                allowed=first["msg"],
                fix=f"Correct --{name.replace('_', '-')}, {PREFIX}{name.upper()} or {name} in {path}.",
            ) from error
        except ValueError as error:  # the file itself
            raise ConfigError(
                "the configuration file cannot be read",
                got=str(error),
                allowed="TOML",
                fix=f"Correct {path}.",
            ) from error
        return loaded

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003, the name is pydantic's
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, env_settings, dotenv_settings, TomlConfigSettingsSource(settings_cls)

    @property
    def keys(self) -> tuple[str, ...]:
        """The accepted keys; none means that nobody is asked."""
        found = [self.api_key.get_secret_value()] if self.api_key is not None else []
        if self.api_key_file is not None:
            try:
                lines = self.api_key_file.read_text(encoding="utf-8").splitlines()
            except (OSError, UnicodeError) as error:
                raise ConfigError(
                    "the key file cannot be read",
                    got=f"{self.api_key_file}: {error}",
                    allowed="a text file with one key to a line",
                    fix="Correct --api-key-file.",
                ) from error
            found += [line.strip() for line in lines if line.strip() and not line.startswith("#")]
            if not found:
                raise ConfigError(
                    "the key file holds no key",
                    got=str(self.api_key_file),
                    allowed="one key to a line",
                    fix="Write one into it, for example with `openssl rand -hex 24`.",
                )
        return tuple(key for key in found if key)

    @property
    def on_loopback(self) -> bool:
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def check_bind(self) -> None:
        """Whoever can reach the port can use it; beyond this machine that must be meant."""
        if not (self.on_loopback or self.keys or self.insecure):
            raise ConfigError(
                "this address can be reached from other machines, and no key is set",
                got=f"--host {self.host}",
                allowed="loopback, or a key, or --insecure",
                fix="Set NIGHTINGALE_API_KEY or --api-key-file; or say --insecure if that is meant.",
            )


def unknown_keys(config: Path | None = None) -> list[str]:
    """Names in the environment and in the files that nobody will read: most likely misspelled."""
    import tomllib

    known = set(Settings.model_fields)

    def unread(name: str) -> bool:
        return name.startswith(PREFIX) and name.removeprefix(PREFIX).lower() not in known

    found = [name for name in os.environ if unread(name) and name not in OTHERS]
    # Read as the settings themselves are; pydantic gives the names in lower case.
    beside = [name.upper() for name in DotEnvSettingsSource(Settings).env_vars]
    found += [f"{name} in {ENV_FILE}" for name in beside if unread(name)]
    path = config or default_config()
    if path.is_file():
        found += [f"{key} in {path}" for key in tomllib.loads(path.read_text("utf-8")) if key not in known]
    return sorted(found)
