"""Linear algebra, coordinates, argument checks: the foundation of the other folders."""
