package io.penstock.sdk;

import java.time.Instant;
import java.util.List;

/** A connection to the engine. Its calls may be repeated safely; each gives one outcome per item. */
interface Wire {
    /** Brings jobs until it is closed, or the worker drains. Throws for a refusal for good. */
    void run() throws InterruptedException;

    List<Outcome> send(Kind kind, List<Result> items, long timeoutMs);

    List<Outcome> beat(List<Beat> items, long timeoutMs);

    /** Lets {@code run} return. Calls can still be made. */
    void stop();

    void close();

    enum Kind { COMPLETE, FAIL, PARK, RELEASE }

    record Outcome(String jobId, String outcome, String reason) {}

    /** Checkpoint and progress are JSON text, or null. */
    record Beat(String jobId, int attempt, String checkpoint, String progress) {}

    /** What is to be reported about a job. Variables are JSON text, or null. */
    final class Result {
        final HeldJob held;
        final Kind kind;
        final String jobId;
        final int attempt;
        String variables;
        boolean retryable;
        String errorMessage = "";
        String errorCode = "";
        long retryAfterMs;
        String stackTrace = "";
        Instant until;
        String signal;
        int faults;

        Result(HeldJob held, Kind kind) {
            this.held = held;
            this.kind = kind;
            this.jobId = held.data.id();
            this.attempt = held.data.attempt();
        }
    }
}
