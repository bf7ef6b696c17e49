"""Code that all SQL backends share."""
