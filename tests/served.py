"""``locus-store serve`` as a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from servers import free_port, wait_until


class Served:
    """``locus-store serve`` on a port that stays the same."""

    def __init__(self, url: str, *options: str) -> None:
        self.port = free_port()
        self.base_url = f"http://127.0.0.1:{self.port}"
        command = [str(Path(sys.executable).parent / "locus-store"), "serve", "--url", url]
        self._command = [*command, "--port", str(self.port), *options]
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            self._command, stderr=subprocess.DEVNULL, start_new_session=True
        )
        wait_until(self._answers, "the service answers")

    def _answers(self) -> bool:
        try:
            with urlopen(self.base_url + "/ready", timeout=5):  # noqa: S310  (ours)
                return True
        except (URLError, OSError):
            return False

    def kill(self) -> None:
        """As by ``kill -9``, its workers too."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(40)
