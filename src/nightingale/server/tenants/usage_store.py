"""Characters that each tenant has used today, in memory and in a small SQLite file.

The file makes the limit of a day survive a restart. Several processes of a machine may share it: each adds what it has
counted since it last saved, and reads the sum of all. A crash loses what was not saved, at most SAVE_S seconds.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Final

log = logging.getLogger("nightingale.server")

SAVE_S: Final = 5.0
KEEP_DAYS: Final = 62
DAY_S: Final = 86_400
_SCHEMA: Final = (
    "CREATE TABLE IF NOT EXISTS characters "
    "(day INTEGER, tenant TEXT, used INTEGER NOT NULL, PRIMARY KEY (day, tenant)) WITHOUT ROWID"
)
_ADD: Final = (
    "INSERT INTO characters VALUES (?, ?, ?) "
    "ON CONFLICT (day, tenant) DO UPDATE SET used = used + excluded.used"
)


def today() -> int:
    """Return the number of the calendar day (UTC) since 1970."""
    return int(time.time() // DAY_S)


def until_tomorrow_s() -> float:
    """Return the time until the next calendar day (UTC) begins."""
    return DAY_S - time.time() % DAY_S


class CharacterCounts:
    """The characters of today by tenant. All methods may be called from any thread."""

    def __init__(self, path: Path | None) -> None:
        """path: the file that `save` writes; None keeps the counts in memory only."""
        self._path, self._lock, self._save_lock = path, threading.Lock(), threading.Lock()
        self._saved, self._saved_day = dict[str, int](), today()
        """The sums of all processes when the file was last read, and the day of that."""
        self._unsaved: Counter[tuple[int, str]] = Counter()
        self._has_failed = False
        self._save({})

    def used(self, tenant: str) -> int:
        """Return how many characters a tenant has used today."""
        with self._lock:
            return self._used(today(), tenant)

    def add(self, tenant: str, chars: int, limit: int | None = None) -> bool:
        """Count characters and return True; return False, and count nothing, if that would exceed the limit.

        A negative number takes back what a failed request did not use.
        """
        with self._lock:
            day = today()
            if limit is not None and self._used(day, tenant) + chars > limit:
                return False
            self._unsaved[day, tenant] += chars
            return True

    def save(self) -> None:
        """Add what was counted since the last call to the file, and read the sums. This call waits for the disk."""
        with self._save_lock:
            with self._lock:
                counted = {key: chars for key, chars in self._unsaved.items() if chars}
            if counted:
                self._save(counted)

    def _save(self, counted: dict[tuple[int, str], int]) -> None:
        if self._path is None:
            return
        try:
            day, sums = _add_to_file(self._path, counted)
        except (sqlite3.Error, OSError) as error:
            if not self._has_failed:
                log.error("the use of tenants cannot be stored", extra={"error": str(error)})
            self._has_failed = True
            return
        with self._lock:
            self._saved, self._saved_day, self._has_failed = sums, day, False
            self._unsaved.subtract(counted)
            self._unsaved = Counter({key: chars for key, chars in self._unsaved.items() if chars})

    def _used(self, day: int, tenant: str) -> int:
        saved = self._saved.get(tenant, 0) if day == self._saved_day else 0
        return saved + self._unsaved[day, tenant]


def _add_to_file(path: Path, counted: dict[tuple[int, str], int]) -> tuple[int, dict[str, int]]:
    """Return the day, and the characters that each tenant has used in it, with those that are added here."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(path, timeout=SAVE_S)) as database, database:
        day = today()
        database.execute(_SCHEMA)
        if counted:
            database.executemany(_ADD, [(*key, chars) for key, chars in counted.items()])
            database.execute("DELETE FROM characters WHERE day < ?", (day - KEEP_DAYS,))
        rows = database.execute("SELECT tenant, used FROM characters WHERE day = ?", (day,))
        return day, {str(tenant): int(used) for tenant, used in rows}
