"""The cost of a large backlog, a bloated table and many topics: how they are made and measured."""
