"""The pages: a coroutine function of a ``PageRequest`` for each."""
