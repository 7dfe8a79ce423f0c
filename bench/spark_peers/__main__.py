"""`python -m bench.spark_peers --folder F --one URL --three URL ...`: measures formats and prints JSON."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from bench.spark_peers.measure import measure
from bench.tools.workload import ClientPace


def main() -> None:
    """Measure, with the PySpark that PYTHONPATH names."""
    parser = argparse.ArgumentParser(prog="bench.spark_peers", description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--one", required=True, help="the home of a cluster of one replica")
    parser.add_argument("--three", required=True, help="the home of a cluster of three replicas")
    parser.add_argument("--repeats", type=int, required=True)
    parser.add_argument("--warm-s", type=float, required=True)
    parser.add_argument("--run-s", type=float, required=True)
    args = parser.parse_args()
    pace = ClientPace(args.warm_s, args.run_s)
    print(json.dumps(measure(args.folder, (args.one, args.three), repeats=args.repeats, pace=pace)))


if __name__ == "__main__":
    main()
