"""Questions of `ask`, load-test logs and calibration, one file per simulator.

`simulators` imports nothing from this package. Commands of the sweeper load a file by the name of
the simulator.
"""
