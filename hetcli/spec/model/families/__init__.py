"""The model families that hetcli reads, by the `model_type` of a Hugging Face configuration."""
