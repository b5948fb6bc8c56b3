"""Those who send requests to a simulated cloud, and what the judge keeps of their answers."""
