"""The predictor against measured runs: read a table, predict its rows, state the errors."""
