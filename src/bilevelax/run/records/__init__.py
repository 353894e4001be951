"""What a run leaves behind: history, checkpoints, results, progress."""
