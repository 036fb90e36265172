"""Everything of rayeval that runs on Ray: actors that own model clients and environment leases, the pool that feeds them, the engine.

A class here is a plain class; ``handles.py`` is the one place that wraps it by ``ray.remote``, so that its logic is tested without Ray.
"""
