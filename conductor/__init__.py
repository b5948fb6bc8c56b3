"""The super conductor and the cell conductors: they record each step of a server operation before they do it."""
