"""Values of Python and of users' classes as data: the one codec of all adapters."""
