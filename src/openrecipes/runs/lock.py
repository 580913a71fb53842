"""One run writes a record at a time: a lock on a file in it that ends with its holders."""

from __future__ import annotations

import fcntl
import os
import weakref
from pathlib import Path

from openrecipes.errors import InputError

LOCK = ".lock"


class RecordLock:
    """The right to write a run record, until it is released or every process that holds it ends.

    A process that inherits ``descriptor`` holds it, too. The system lets go however the processes
    end, so nothing has to be cleaned up after a run that was killed. On a file system that knows no
    locks nothing is held.

    Args:
        record: the record's directory.

    Raises:
        InputError: a run that still goes on holds it.
    """

    def __init__(self, record: Path) -> None:
        self.descriptor = os.open(record / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
        self._release = weakref.finalize(self, os.close, self.descriptor)
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.release()
            raise InputError(
                "wait for that run or stop it, or choose another --output",
                file=record,
                field="--output",
                found="a run that still goes on",
                expected="a record that no run writes",
            ) from None
        except OSError:  # some network file systems have no locks
            return

    def release(self) -> None:
        """Let go in this process; again does nothing."""
        self._release()
