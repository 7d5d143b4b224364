"""DeepSpeed: ZeRO or a pipeline with the planned stages, run by a small trainer."""
