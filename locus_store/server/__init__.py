"""The servers of the command line, ``serve`` and ``inspect``, over the applications."""
