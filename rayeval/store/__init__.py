"""The run directory: manifest, launches, the lock, the trace log with its receipts, resume, leases, status.

``docs/resume.md`` says what is promised; each module says how.
"""

from rayeval.store.launch import (
    LAUNCH_SCHEMA,
    argv_without_secrets,
    git_state,
    launch_number,
    package_versions,
    without_secrets,
    write_launch,
)
from rayeval.store.lease_journal import JournalActor, JournalState, LeaseJournal, load_journal
from rayeval.store.lock import LockRecord, RunLock, boot_id, living_holder, process_space, read_lock_record
from rayeval.store.reading import (
    TraceLine,
    TraceReader,
    TraceScanner,
    canonical_hash_of_run,
    iter_receipts,
    iter_traces,
    last_records,
)
from rayeval.store.resume import ResumeIndex, load_resume_index, repair_torn_tail
from rayeval.store.run_directory import (
    FOREIGN_MANIFEST_SCHEMAS,
    LATEST,
    RunDirectory,
    RunInfo,
    list_runs,
    resolve_run,
    run_info,
)
from rayeval.store.run_logs import RunLogs
from rayeval.store.status import read_status, write_status
from rayeval.store.trace_log import TraceLog

__all__ = [
    "FOREIGN_MANIFEST_SCHEMAS",
    "LATEST",
    "LAUNCH_SCHEMA",
    "JournalActor",
    "JournalState",
    "LeaseJournal",
    "LockRecord",
    "ResumeIndex",
    "RunDirectory",
    "RunInfo",
    "RunLock",
    "RunLogs",
    "TraceLine",
    "TraceLog",
    "TraceReader",
    "TraceScanner",
    "argv_without_secrets",
    "boot_id",
    "canonical_hash_of_run",
    "git_state",
    "iter_receipts",
    "iter_traces",
    "last_records",
    "launch_number",
    "list_runs",
    "living_holder",
    "load_journal",
    "load_resume_index",
    "package_versions",
    "process_space",
    "read_lock_record",
    "read_status",
    "repair_torn_tail",
    "resolve_run",
    "run_info",
    "without_secrets",
    "write_launch",
    "write_status",
]
