"""The sets that a follower may choose from: nearest points, faces, and how answers move along them."""
