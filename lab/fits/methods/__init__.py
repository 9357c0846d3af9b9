"""How numbers are fitted: least squares, monotone trees, grids, processes; none knows a table."""
