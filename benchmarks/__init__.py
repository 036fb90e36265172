"""Speed and memory, each figure beside a floor of the same run: ``python -m benchmarks``. docs/performance.md says what they mean."""
