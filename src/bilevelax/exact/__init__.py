"""The follower's problem solved tightly on a set of samples."""
