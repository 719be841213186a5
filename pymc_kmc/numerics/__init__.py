"""Linear algebra, coordinates, argument checks: what every room stands on."""
