"""OpenTelemetry's providers, which a program may set at any time."""

from __future__ import annotations

from sys import modules
from typing import Final


def has_provider() -> bool:
    """Return whether the program has set a provider of OpenTelemetry.

    A program that does so has imported the API; this package never imports it by itself. Many
    frameworks import it, too, and the API's own providers drop everything.
    """
    for package, getter, module, name in _PROVIDERS:
        api = modules.get(package)
        if api is None or (package in _asked and getattr(modules.get(module), name, api) is None):
            continue
        ask = getattr(api, getter, None)  # None: the import has not ended
        if ask is not None:
            _asked.add(package)
            if not type(ask()).__module__.startswith(package):
                return True
    return False


_PROVIDERS: Final = (
    ("opentelemetry.trace", "get_tracer_provider", "opentelemetry.trace", "_TRACER_PROVIDER"),
    (
        *("opentelemetry.metrics", "get_meter_provider"),
        *("opentelemetry.metrics._internal", "_METER_PROVIDER"),
    ),
)
"""Parts of the API: the function that returns the provider, and where the API keeps it.

``None`` is kept while none is set. The function then reads the environment, which may name one that
it loads; a look at what is kept takes a tenth of the time.
"""

_asked: set[str] = set()
"""Parts whose function was called: a provider that the environment names is loaded."""
