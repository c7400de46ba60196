"""Read a graph in any format, or from arrays, and refuse what is wrong with it before any work."""
