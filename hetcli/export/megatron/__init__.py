"""Mainline Megatron-LM: arguments, its own rules, and the layout grammar."""
