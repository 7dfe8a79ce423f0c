"""Unit tests: pure code and the rules of the code base; no processes, no network beyond loopback sockets."""
