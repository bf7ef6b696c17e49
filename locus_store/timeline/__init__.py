"""Questions about the versions of a thread: differences, origins of values, changes of an answer.

Nothing here prints or needs HTTP: the command line and the pages of the inspector call the same
functions, over any ``StorageBackend``.
"""
