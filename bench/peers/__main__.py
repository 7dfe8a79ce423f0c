"""`python -m bench.peers NAME --folder F --clients 1,8 ...`: measures one peer and prints JSON."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from bench.peers.measure import PEERS, measure
from bench.tools.workload import ClientPace


def main() -> None:
    """Measure one number of clients after the other, each on new tables."""
    parser = argparse.ArgumentParser(prog="bench.peers", description=__doc__)
    parser.add_argument("name", choices=PEERS)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--clients", required=True, help="numbers of clients, with commas")
    parser.add_argument("--warm-s", type=float, required=True)
    parser.add_argument("--run-s", type=float, required=True)
    args = parser.parse_args()
    counts = [int(text) for text in args.clients.split(",")]
    print(json.dumps(measure(args.name, args.folder, counts, ClientPace(args.warm_s, args.run_s))))


if __name__ == "__main__":
    main()
