"""The clients of a simulated cloud: callers, operators and writers, and the answers that the judge compares."""
