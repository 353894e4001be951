"""The robust newsvendor with side information, eq. (10)-(11), once for all who run it.

The application `wdro_si`, `bilevelax.sklearn.RobustNewsvendor` (so also the command line) and the study's Figure 3
choose data, rules and units; loss, smoothing, the adversary's problem and its price are those of this folder.
"""
