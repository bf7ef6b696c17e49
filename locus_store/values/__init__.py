"""Values without a thread: JSON as bytes, words, vectors, filters, and frames of differences."""
