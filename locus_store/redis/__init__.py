"""What the Redis backend and store stand on: names of keys, connections, scripts."""
