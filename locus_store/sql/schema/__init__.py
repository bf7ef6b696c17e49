"""Tables, their definition in a database, and its revisions."""
