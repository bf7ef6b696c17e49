"""Signals that a program handles in Python: such a handler may raise, or call, anywhere."""

from __future__ import annotations

import signal
import threading
from _signal import getsignal  # type: ignore[import-not-found]  # 2 us; of signal, 19
from typing import Final

SIGNAL_SECONDS: Final = 1.0
"""A signal is handled by then, even if it comes in the worst moment."""

_OTHERS: Final = tuple(it for it in signal.valid_signals() if it < 32 and it != signal.SIGINT)  # noqa: PLR2004  (realtime signals)


def is_main_thread() -> bool:
    """Return whether this is the thread that handles signals."""
    return threading.get_ident() == threading.main_thread().ident


def may_be_interrupted() -> bool:
    """Return whether ``Ctrl-C`` raises ``KeyboardInterrupt`` in the main thread."""
    return getsignal(signal.SIGINT) is signal.default_int_handler


def are_handled() -> bool:
    """Return whether a signal runs a function of the program."""
    on_ctrl_c = getsignal(signal.SIGINT)
    is_own = callable(on_ctrl_c) and on_ctrl_c is not signal.default_int_handler
    return is_own or any(map(callable, map(getsignal, _OTHERS)))
