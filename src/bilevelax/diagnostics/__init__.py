"""Is my problem right, is my gradient right, am I there, which estimator: `check`, `constants`, `certify`, `tune`."""
