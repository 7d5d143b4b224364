"""A small reference runtime that executes any plan for a few steps on the real devices.

`assignment` and `program` turn a configuration into what every device does, `holders` into who
holds what; neither knows torch. `modules`, `parallel` and `gradients` are the work itself,
`exchange` and `groups` carry it between devices, `execute` runs a step, `worker` is one process,
`launch` starts and watches all of them and `compare` says what came true of the prediction.
"""
