"""Which Kafka topic the jobs of a type go to, and which types can have one. Pure."""

from __future__ import annotations

import re

TOPIC_PREFIX = "workflow.jobs."
TOPIC_MAX_CHARS = 249  # Kafka's limit
_TOPIC = re.compile(r"[a-zA-Z0-9._-]+")


def topic_of(job_type: str) -> str:
    """Return the topic of a job type; see `topic_problem` for whether there can be one."""
    return TOPIC_PREFIX + job_type


def topic_problem(job_type: str) -> str | None:
    """Why no topic can be named after a job type; None when one can."""
    if not _TOPIC.fullmatch(job_type):
        return "can't be the name of a Kafka topic: only letters, digits, '.', '_' and '-' may be in it"
    if len(topic_of(job_type)) > TOPIC_MAX_CHARS:
        return f"can't be the name of a Kafka topic: at most {TOPIC_MAX_CHARS - len(TOPIC_PREFIX)} characters"
    return None
