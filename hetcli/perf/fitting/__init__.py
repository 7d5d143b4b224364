"""From measurements to curves: robust regression over profiles."""
