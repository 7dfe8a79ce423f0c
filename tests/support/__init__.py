"""Code that tests share: fixtures, fault injection, and views of running processes."""
