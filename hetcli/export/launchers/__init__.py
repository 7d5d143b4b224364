"""What starts the processes of all nodes: one file a launcher."""
