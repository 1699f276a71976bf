"""Other people's controllers, for real: built from their Go modules, run beside us on the control plane of the tests."""
