"""Transfer of threads: copies, JSON Lines, imports, and verification."""
