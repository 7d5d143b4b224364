"""After the plan: what really happened, which device is to blame, and what to do about it.

`logs` reads what frameworks print, `observe` puts it beside the plan, `detect` tells a slow device
from a long batch, `replan` finds what to go on with, `checkpoint` how often to save.
"""
