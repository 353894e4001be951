"""The study of the paper: its tables and figures made again, claim by claim. bilevelax never imports it."""
