package io.penstock.sdk;

import java.time.Instant;

/**
 * Gives the job back until a time, for a signal, or for whichever comes first: it comes again then, as the next attempt,
 * with its checkpoint. No retry is spent, and the worker is free meanwhile.
 */
public class LaterException extends Exception {
    private final transient Instant until;
    private final String signal;

    /** Until a time. */
    public LaterException(Instant until) {
        this(null, until);
    }

    /**
     * Until the instance gets a signal of this name (or one to the step), at longest until a time, which may be null. What
     * the signal brings is among the variables of the next attempt.
     */
    public LaterException(String signal, Instant until) {
        super("waits for " + (signal == null ? "a time" : "the signal " + signal) + (until == null ? "" : " until " + until));
        if (until == null && (signal == null || signal.isEmpty())) throw new IllegalArgumentException("give a time or the name of a signal");
        this.until = until;
        this.signal = signal;
    }

    /** Null: without an end. */
    public Instant until() {
        return until;
    }

    /** Null: for no signal. */
    public String signal() {
        return signal;
    }
}
