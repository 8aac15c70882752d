"""Settings of a cluster: how many replicas, what each one needs, and when their number changes."""

from __future__ import annotations

import re
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from nightingale.server.settings import setting_error

MAX_REPLICAS = 1000


class ClusterSettings(BaseModel):
    """The arguments of `nightingale.ray.build_app`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    replicas: str = Field("1", description="A number, or a range such as 1..8; 0..8 scales to zero.")
    gpus_per_replica: float = Field(0.0, ge=0, description="GPUs that each replica reserves.")
    cpus_per_replica: float = Field(1.0, ge=0, description="Cores that each replica reserves.")
    listeners_per_replica: int | None = Field(
        None, ge=1, description="Listeners that one replica supplies; by default as many as it measures."
    )
    voices: str | None = Field(
        None, description="Folder or URL of the voices, which all replicas must reach; see docs/cluster.md."
    )
    grace_s: float = Field(
        600.0, ge=0, description="How long a replica that stops lets running speech finish."
    )
    upscale_delay_s: float = Field(
        5.0, ge=0, description="Time with too many listeners before replicas are added."
    )
    downscale_delay_s: float = Field(
        120.0, ge=0, description="Time with too few before replicas are removed."
    )
    metrics_interval_s: float = Field(1.0, gt=0, description="Time between two reports of a replica's load.")
    service: str = Field(
        "nightingale.server.service.speech_service:SpeechService",
        description="Import path of the service; another one replaces the engine in tests.",
    )
    server: dict[str, Any] = Field({}, description="Settings of the server (docs/running.md).")

    @field_validator("replicas", mode="before")
    @classmethod
    def _spell(cls, value: Any) -> Any:
        return str(value) if isinstance(value, int) and not isinstance(value, bool) else value

    @field_validator("replicas")
    @classmethod
    def _check_range(cls, value: str) -> str:
        parse_replicas(value)
        return value

    @property
    def replica_range(self) -> tuple[int, int]:
        """Return the least and the largest number of replicas."""
        return parse_replicas(self.replicas)

    @classmethod
    def load(cls, args: dict[str, Any]) -> Self:
        """Check the arguments of an application; raise ConfigError if one is wrong."""
        try:
            return cls(**args)
        except ValidationError as error:
            raise setting_error(error, fix=f"The settings are {', '.join(cls.model_fields)}.") from error


def parse_replicas(spec: str) -> tuple[int, int]:
    """Parse "3" or "1..8" into the least and the largest number of replicas."""
    found = re.fullmatch(r"(\d{1,4})(?:\.\.(\d{1,4}))?", spec.strip())
    least, largest = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
    if not least <= largest <= MAX_REPLICAS or largest == 0:
        raise ValueError(f"replicas is a number, or a range such as 1..8 of at most {MAX_REPLICAS}")
    return least, largest
