package io.penstock.sdk;

/** Fails the job for good: the step and its instance fail with this message. */
public class NonRetryableException extends Exception {
    public NonRetryableException(String message) {
        super(message);
    }
}
