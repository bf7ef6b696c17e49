"""The contracts of backends, stores and message logs as requests and answers over HTTP."""
