"""What the SQL backends share."""
