"""What tests share: fixtures, fault injection, and looks at running processes."""
