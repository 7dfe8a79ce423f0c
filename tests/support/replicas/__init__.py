"""Parts of a replica made by hand: data directories, readers, peers, and agents as clients see them."""
