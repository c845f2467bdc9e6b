package io.penstock.sdk;

import java.util.Map;

/**
 * Fails the job with a code that the workflow knows. An error boundary of the step that names it takes it at once;
 * otherwise it is tried again while the step has retries left, unless it is not retryable.
 */
public class StepException extends Exception {
    private final String code;
    private final transient Map<String, ?> variables;
    private final boolean retryable;

    public StepException(String code, String message) {
        this(code, message, null, true);
    }

    /** The variables, which may be null, are known where the error is caught. */
    public StepException(String code, String message, Map<String, ?> variables, boolean retryable) {
        super(message);
        this.code = code;
        this.variables = variables;
        this.retryable = retryable;
    }

    public String code() {
        return code;
    }

    public Map<String, ?> variables() {
        return variables;
    }

    public boolean retryable() {
        return retryable;
    }
}
