"""Builders, fakes and rigs that several folders of tests share, in one package for each package of the product."""
