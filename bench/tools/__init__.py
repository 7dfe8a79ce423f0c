"""The means of the parts: clients, data, a Spark session, and what the machine says."""
