"""A user's own trainer: what every rank is of the plan, as JSON and environment."""
