"""CSV in and out: columns, dates, models on disk."""
