"""Pipeline schedules as data, and the one simulator that runs any of them.

`work` is the vocabulary, `schedules` the named ones, `rules` what is legal, `list_scheduling` and
`fused` make orders that nobody wrote down; `simulate` gives a `timeline`, `batch` and
`closed_forms` give makespans of many candidates at once, `in_flight` gives what a stage holds.
"""
