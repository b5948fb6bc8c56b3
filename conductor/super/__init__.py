"""The super conductor: takes orders, asks the schedulers for hosts, and hands instances over to cells."""
