"""torchtitan: a configuration in Python, since unequal stages cannot be given as options."""
