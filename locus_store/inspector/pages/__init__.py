"""The pages: a coroutine function of a ``Visit`` for each."""
