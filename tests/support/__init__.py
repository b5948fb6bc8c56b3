"""What several folders of tests share, one package for each of the product."""
