"""A pytest plugin (``-p without_posix``): no module and no function that only POSIX has.

What Windows lacks is taken away before the product is imported, so that a use without a guard
fails here, too. The file system stays that of the machine.
"""

from __future__ import annotations

import os
import signal
import sys

for module in ("fcntl", "grp", "pwd", "resource", "termios"):
    sys.modules[module] = None  # type: ignore[assignment]
for place, names in (
    (
        os,
        ("O_CLOEXEC", "O_DIRECTORY", "O_NOFOLLOW", "fchmod", "fork", "geteuid", "register_at_fork"),
    ),
    (signal, ("SIGHUP", "SIGKILL", "SIGPIPE", "SIGSTOP", "SIGUSR1")),
):
    for name in names:
        if hasattr(place, name):
            delattr(place, name)
