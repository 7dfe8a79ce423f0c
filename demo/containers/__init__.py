"""The demo in containers: the services of docker/compose.yaml, with the scenario in the driver's container.

`run.run` runs on the machine of the user: it starts the services, sends the demo into the driver, and does
what only the machine can do, such as killing a replica's container. `driver` is the part in the container.
The two exchange lines of JSON (`orders`).
"""
