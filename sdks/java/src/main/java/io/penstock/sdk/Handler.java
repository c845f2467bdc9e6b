package io.penstock.sdk;

/**
 * Does a job. What it returns (null, or anything with the form of a JSON object; a CompletionStage of it is waited for) is
 * merged into the instance's variables. Its thread is interrupted when it is to stop: {@link Job#stopReason()} says why.
 */
@FunctionalInterface
public interface Handler {
    Object handle(Job job) throws Exception;

    /** A handler that takes the variables as a type of yours. */
    @FunctionalInterface
    interface Typed<V> {
        Object handle(Job job, V variables) throws Exception;
    }
}
