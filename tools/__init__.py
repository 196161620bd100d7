"""Commands of the house: what `make` calls beside the usual tools."""
