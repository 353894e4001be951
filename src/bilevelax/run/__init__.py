"""Algorithm 2: from the first iterate to the result."""
