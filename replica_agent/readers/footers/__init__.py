"""What readers are shown of Parquet footers: float hints are hidden, many small files are one. Pure."""
