"""The super conductor: it takes orders, asks the schedulers, and hands instances to cells."""
