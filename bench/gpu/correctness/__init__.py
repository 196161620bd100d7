"""The checks that something is right on a device."""
