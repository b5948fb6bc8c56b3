"""The super conductor and the cell conductors: every server operation, written down before it is done."""
