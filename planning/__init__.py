"""What planners ask of simulators, and read beside them: questions by flags, logs of load tests.

It composes spaces and words of answers, and prices nothing: `simulators` imports none of it, and
commands of the sweeper load what is about a simulator by that simulator's name.
"""
