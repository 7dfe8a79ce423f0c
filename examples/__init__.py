"""Complete programs, to be run in the checkout: `python -m examples.NAME [--url URL]`; see README.md."""
