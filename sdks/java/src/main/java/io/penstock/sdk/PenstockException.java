package io.penstock.sdk;

import java.time.Duration;
import java.util.Set;

/** What a call to the engine fails with. The code is the engine's word: "not-found", "conflict", "throttled", … */
public final class PenstockException extends RuntimeException {
    private static final Set<String> PASSING =
        Set.of("unavailable", "resource-exhausted", "connection-failed", "timed-out");
    private final String code;
    private final String reason;
    private final int status;
    private final boolean maybeApplied;
    Duration retryAfter = Duration.ZERO;

    PenstockException(String code, String reason, int status, boolean maybeApplied) {
        super(code + ": " + reason);
        this.code = code;
        this.reason = reason;
        this.status = status;
        this.maybeApplied = maybeApplied;
    }

    public String code() {
        return code;
    }

    public String reason() {
        return reason;
    }

    /** The HTTP status; 0 when no answer was received. */
    public int status() {
        return status;
    }

    /** Whether a request without an answer may have taken effect. */
    public boolean maybeApplied() {
        return maybeApplied;
    }

    /** The next step for a refusal that ends a worker. */
    String whatToDo() {
        return switch (code) {
            case "unauthenticated" -> "give the worker a token that the engine knows: WorkerOptions.token";
            case "forbidden" -> "give the caller of this token the permission to work";
            case "gone" -> "the engine dispatches jobs through Kafka, which this worker does not read";
            case "redirected" -> "give the worker the address that the redirect names";
            default -> "look whether the URL is the engine's, and whether the engine is as new as this worker";
        };
    }

    boolean isUnavailable() {
        return PASSING.contains(code);
    }

    /** Whether to ask for jobs again. A worker that was let in once waits for its token to be renewed. */
    boolean mayPass(boolean answered) {
        return isUnavailable() || code.equals("internal-error") || (answered && code.equals("unauthenticated"));
    }
}
