package io.penstock.sdk;

import java.time.Duration;

/** Fails the job; it is tried again, after the pause, while the step has retries left. */
public class RetryException extends Exception {
    private final Duration after;

    public RetryException(String message, Duration after) {
        super(message);
        this.after = after;
    }

    public Duration after() {
        return after;
    }
}
