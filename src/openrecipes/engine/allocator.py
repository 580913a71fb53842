"""Freed memory kept for the next tensor, on a CPU.

glibc gives large blocks back to the kernel as soon as they are freed, and the kernel clears every
page of the next one: 5 to 15% of a training step on a CPU. A step needs the same blocks again and
again, so keeping them costs no memory at the peak. (GPUs: torch's own allocator does the same.)
"""

from __future__ import annotations

import ctypes

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4
_NEVER = 2**31 - 1


def keep_freed_memory() -> bool:
    """Tell the C library to keep freed memory in this process; whether it is one that listens."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):  # not glibc
        return False
    return bool(mallopt(_M_MMAP_MAX, 0) and mallopt(_M_TRIM_THRESHOLD, _NEVER))
