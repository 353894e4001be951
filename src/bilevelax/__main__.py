"""``python -m bilevelax``."""

from bilevelax.cli import main

main()
