"""What a large backlog, a bloated table and many topics cost: how they are made, and what is measured of them."""
