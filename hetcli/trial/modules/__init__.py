"""The model's layers with synthetic weights: real shapes, real arithmetic, cut as a plan says."""
