"""The settings tree, read once from HEADRACE_ variables by the command and handed down.

Nobody else reads the environment. Per-route values are in the route spec, never here.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from runtime.errors import SettingsError
from shared_models.route import Accelerators

PREFIX = "HEADRACE_"

OF_CLIENT = ("HEADRACE_GATEWAY_URL", "HEADRACE_API_KEY")
"""What commands read that go through a gateway."""

_OF_KUBERNETES = re.compile(
    r"HEADRACE_(?!.*__)(?:[A-Z0-9_]+_)?(?:SERVICE_HOST|SERVICE_PORT(?:_[A-Z0-9_]+)?|PORT(?:_\d+_(?:TCP|UDP|SCTP)(?:_[A-Z]+)?)?)"
)
"""What the kubelet tells every pod about a Service whose name begins with ``headrace``."""


class _Group(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class RedisSettings(_Group):
    """Where Redis is and how long to wait for it. Times in seconds."""

    url: SecretStr | None = None
    connect_timeout: float = Field(default=5.0, gt=0)
    command_timeout: float = Field(default=10.0, gt=0)


class WorkerSettings(_Group):
    """How a worker process behaves. Times in seconds, sizes in bytes."""

    processes: int = Field(default=1, ge=1, le=256)
    concurrency: int = Field(default=10, ge=1, le=10_000)
    lease: float = Field(default=15.0, gt=0.2)
    sweep_interval: float = Field(default=2.0, gt=0)
    reconcile_interval: float = Field(default=5.0, gt=0)
    audit_interval: float = Field(default=60.0, gt=0)
    poll_interval: float = Field(default=2.0, gt=0)
    probe_interval: float = Field(default=30.0, gt=0)
    reclaim_idle: float = Field(default=600.0, gt=0)
    hang_timeout: float = Field(default=60.0, gt=1)
    start_timeout: float = Field(default=300.0, gt=0)
    probe_port: int | None = Field(default=None, ge=1, le=65535)
    probe_host: str = "127.0.0.1"
    max_runs: int | None = Field(default=None, ge=1)
    max_memory: int | None = Field(default=None, ge=1)
    grace: float = Field(default=60.0, ge=0)
    max_payload: int = Field(default=8 * 1024 * 1024, ge=1024)
    checkpoint_key: SecretStr | None = None


class RetentionSettings(_Group):
    """How long Redis keeps what is not the streams' own. Times in seconds."""

    runs: float = Field(default=7 * 86400.0, gt=0)
    chat: float = Field(default=30 * 86400.0, gt=0)
    chat_messages: int = Field(default=200, ge=1)
    run_list: int = Field(default=10_000, ge=1)
    results: float = Field(default=86400.0, gt=0)
    waiting: float = Field(default=30 * 86400.0, gt=0)


class LogSettings(_Group):
    """What is logged and how: ``console`` for people, ``json`` for collectors."""

    level: str = Field(default="info", pattern="^(debug|info|warning|error)$")
    format: str = Field(default="auto", pattern="^(auto|console|json)$")


class EngineSettings(_Group):
    """How the engine runs flows, where a route does not say otherwise."""

    accelerators: Accelerators = Accelerators()


class GatewaySettings(_Group):
    """How the HTTP gateway listens and what it takes. Times in seconds, sizes in bytes."""

    host: str = "127.0.0.1"
    port: int = Field(default=8800, ge=0, le=65535)
    auth: Literal["auto", "required", "off"] = "auto"
    """auto: off where it listens on loopback only, required elsewhere."""
    cors: str = ""
    """Origins from which browsers may call, separated by commas; ``*`` for any."""
    max_body: int = Field(default=8 * 1024 * 1024, ge=1024)
    inline_limit: int = Field(default=256 * 1024, ge=1024)
    """Payloads beyond this go to the archive, where there is one."""
    max_upload: int = Field(default=100 * 1024 * 1024, ge=1024)
    """The body of a request that brings files."""
    max_files: int = Field(default=20, ge=1, le=1000)
    max_headers: int = Field(default=32 * 1024, ge=1024)
    read_timeout: float = Field(default=20.0, gt=0)
    """How long a client may take to send a request's headers, and again its body, and to take some of its answer."""
    keep_alive: int = Field(default=75, ge=1)
    """How long a connection is kept from request to request: longer than those in front of it keep theirs, often 60."""
    max_wait: float = Field(default=60.0, ge=0)
    connections: int = Field(default=4000, ge=1)
    redis_memory: float = Field(default=0.9, gt=0, le=1)
    """The share of Redis' maxmemory beyond which nothing is taken."""
    grace: float = Field(default=10.0, ge=0)

    @property
    def origins(self) -> tuple[str, ...]:
        """The list of ``cors``."""
        return tuple(part.strip().rstrip("/") for part in self.cors.split(",") if part.strip())


class ArchiveSettings(_Group):
    """Where payloads and files are kept that are too large for a stream. ``retention`` in seconds."""

    url: str | None = None
    """``file:///PATH``, ``s3://BUCKET/PREFIX``, ``gs://``, ``az://``, ``memory://``."""
    retention: float = Field(default=30 * 86400.0, gt=0)


class CallbackSettings(_Group):
    """How callbacks are delivered. Times in seconds."""

    secret: SecretStr | None = None
    """Signs the callbacks of routes that name no secrets; two with a comma between while one is rotated."""
    allow_private: bool = False
    """Whether they may go to addresses that are not public, and without TLS."""
    timeout: float = Field(default=20.0, gt=0, le=600)


class Settings(BaseSettings):
    """All settings. ``HEADRACE_WORKER__CONCURRENCY=20`` sets ``worker.concurrency``."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_nested_delimiter="__", frozen=True, extra="forbid", case_sensitive=False
    )

    flows: Path = Path("flows")
    data: Path = Path(".headrace")
    redis: RedisSettings = RedisSettings()
    worker: WorkerSettings = WorkerSettings()
    gateway: GatewaySettings = GatewaySettings()
    retention: RetentionSettings = RetentionSettings()
    engine: EngineSettings = EngineSettings()
    archive: ArchiveSettings = ArchiveSettings()
    callbacks: CallbackSettings = CallbackSettings()
    log: LogSettings = LogSettings()


def load_settings() -> Settings:
    """The settings from the environment. Raises SettingsError naming the variable and the nearest right name."""
    _check_names(os.environ)
    try:
        return Settings()
    except ValidationError as error:
        first = error.errors()[0]
        name = PREFIX + "__".join(str(part) for part in first["loc"]).upper()
        raise SettingsError(f"{name}: {first['msg']} (it is {first.get('input')!r})") from error


def take_secrets_away(environ: MutableMapping[str, str] = os.environ) -> None:
    """Remove HEADRACE_ variables and the Redis URL, so that no flow's code can read the worker's own configuration."""
    for name in [n for n in environ if n.upper().startswith(PREFIX) or n == "REDIS_URL"]:
        blank = _blanker(name) if environ is os.environ else None
        del environ[name]
        if blank is not None:
            blank()


def _blanker(name: str) -> Callable[[], None] | None:
    """What overwrites a variable where the process was given it: /proc/PID/environ shows that memory for ever."""
    import ctypes  # noqa: PLC0415  only the worker needs it

    try:
        stat = Path("/proc/self/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
        start, end = int(stat[47]), int(stat[48])  # env_start and env_end: 50 and 51 in proc_pid_stat(5)
        getenv = ctypes.CDLL(None).getenv
    except (OSError, ValueError, IndexError, AttributeError):
        return None  # no Linux: nothing shows it
    getenv.restype, getenv.argtypes = ctypes.c_void_p, [ctypes.c_char_p]
    value = getenv(os.fsencode(name))
    if value is None:
        return None
    first, size = value - len(os.fsencode(name)) - 1, len(os.fsencode(name)) + 1 + len(ctypes.string_at(value))
    if not start <= first < first + size < end:
        return None  # it was set later: the C library's own memory

    def blank() -> None:
        ctypes.memset(first, 0, size)

    return blank


def variable_names() -> list[str]:
    """Every variable that is read, in upper case."""
    return [name.upper() for name in _names(Settings, PREFIX)]


def _names(model: type[BaseModel], prefix: str) -> Iterator[str]:
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from _names(kind, f"{prefix}{name}__")
        else:
            yield f"{prefix}{name}"


def _check_names(environ: Mapping[str, str]) -> None:
    known = [*variable_names(), *OF_CLIENT]
    for name in environ:
        if name.upper().startswith(PREFIX) and name.upper() not in known and not _OF_KUBERNETES.fullmatch(name):
            near = difflib.get_close_matches(name.upper(), known, n=1)
            hint = f"; did you mean {near[0]}?" if near else f"; known are {', '.join(known)}"
            raise SettingsError(f"{name} is not a setting{hint}")
