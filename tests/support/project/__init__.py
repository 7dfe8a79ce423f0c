"""Reading the project itself: source files, walls between folders, pages and examples."""
