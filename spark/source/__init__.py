"""The data source `tidelock` of PySpark (Python Data Source API): batch and streaming, read and write.

`spark.read.format("tidelock").option("table", "orders")`; PySpark finds the source by the module
`pyspark_tidelock` (docs/spark-source.md). For large reads and writes Spark's own Parquet reader and writer
are faster (`tidelock.spark.attach`, `tidelock.spark.write`); the data source serves convenience, SQL and
streams.
"""
