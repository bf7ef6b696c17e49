"""What lets other frameworks use a backend: mapping only, no storage."""
