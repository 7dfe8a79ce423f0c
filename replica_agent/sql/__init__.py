"""SQL over snapshots, in processes bounded in memory and time that see nothing but tables."""
