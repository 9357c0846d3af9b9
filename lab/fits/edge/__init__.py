"""What is fitted to devices at the edge."""
