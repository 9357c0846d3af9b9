"""Read files of other tools, one module per format.

A simulator loads a reader by the name of the format. Simulators use models, graphs, programs and
mappings only, and know no file format.
"""
