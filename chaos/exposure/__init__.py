"""Attacks of one hostile client on one engine: what it costs the engine, and whether others are served meanwhile.

`python -m chaos.exposure -h` lists them. One file per family: functions of a `Target` (`rig`), each with a sentence.
"""
