"""What a problem, a draw, a level and an estimator are: Algorithms 1, 3 and 4."""
