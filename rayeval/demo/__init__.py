"""A shop that speaks the environment contract, and scripted shoppers behind an OpenAI-compatible server.

``start_demo()`` starts both in a process of their own; with its faults and latencies it is the test server of the
project.
"""

from rayeval.demo.launch import DemoServers, start_demo
from rayeval.demo.options import DemoOptions

__all__ = ["DemoOptions", "DemoServers", "start_demo"]
