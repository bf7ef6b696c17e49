"""``locus-store`` and ``python -m locus_store``, with Ctrl-C handled before most imports."""

from __future__ import annotations

import os
import signal
from typing import Any

INTERRUPTED = 130


def main() -> None:
    """Load the command line and run it."""
    is_ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_ours:  # else a parent such as nohup or a shell ignores it
        signal.signal(signal.SIGINT, _leave)
    from locus_store import cli  # noqa: PLC0415  (takes long)

    if is_ours:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    cli.main()


def _leave(*_: Any) -> None:
    """End the process at once and silently: no command has begun."""
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    main()
