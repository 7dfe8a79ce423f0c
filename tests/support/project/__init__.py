"""What the project says about itself: source files, walls between folders, pages and examples."""
