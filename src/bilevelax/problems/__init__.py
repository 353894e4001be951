"""Problems made from other things: special cases, arrays, clients on disk."""
