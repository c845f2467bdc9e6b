package io.penstock.sdk;

import java.io.PrintWriter;
import java.io.StringWriter;
import java.lang.System.Logger.Level;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.TimeUnit;

/** A job that this worker holds, from its coming until its result is settled. */
final class HeldJob {
    private static final int MAX_ERROR_CHARS = 4096;
    private static final int MAX_STACK_CHARS = 16_384;
    private static final int DEAF_AFTER_S = 10;
    final Job.Data data;
    final Session.Subscription subscription;
    final long receivedAt = System.nanoTime();
    // Guarded by the session, like the two below.
    long leaseEndsAt;
    boolean begun;
    boolean settled;
    private final Session session;
    private Thread thread;
    private StopReason stopReason;
    private volatile boolean ended;

    HeldJob(Session session, Job.Data data, Session.Subscription subscription) {
        this.session = session;
        this.data = data;
        this.subscription = subscription;
        this.leaseEndsAt = receivedAt + session.options.lease.toNanos();
    }

    String key() {
        return data.id() + "/" + data.attempt();
    }

    synchronized StopReason stopReason() {
        return stopReason;
    }

    /** Tells the handler to stop: its thread is interrupted. */
    synchronized void stop(StopReason why) {
        if (stopReason != null) return;
        stopReason = why;
        if (thread == null) return;
        thread.interrupt();
        CompletableFuture.delayedExecutor(DEAF_AFTER_S, TimeUnit.SECONDS).execute(() -> {
            if (!ended) Session.LOG.log(Level.WARNING, "the handler of job {0} ({1}) was told to stop ({2}) and goes on; it keeps its slot: "
                + "let it end when its thread is interrupted", data.id(), data.jobType(), why);
        });
    }

    private synchronized void runsIn(Thread current) {
        thread = current;
        if (current != null && stopReason != null) current.interrupt();
    }

    void report(Object checkpoint, Object progress) throws InterruptedException {
        session.report(this, checkpoint == null ? null : Json.tree(checkpoint).toString(), progress == null ? null : Json.tree(progress).toString());
    }

    /** Runs the handler. What is to be reported; null when nothing is. */
    Wire.Result run(Worker.Registered registered) {
        var limit = registered.timeout();
        ScheduledFuture<?> timer = limit == null ? null
            : session.timers.schedule(() -> stop(StopReason.DEADLINE), limit.toMillis(), TimeUnit.MILLISECONDS);
        Throwable failed = null;
        var result = new Wire.Result(this, Wire.Kind.COMPLETE);
        runsIn(Thread.currentThread());
        try {
            var made = registered.handler().handle(new Job(data, this));
            if (made instanceof CompletionStage<?> stage) made = stage.toCompletableFuture().get();
            if (made != null) result.variables = textOf(made);
        } catch (ExecutionException error) {
            failed = error.getCause() == null ? error : error.getCause();
        } catch (Throwable error) { // whatever a handler ends with fails its job, not the worker
            failed = error;
        } finally {
            ended = true;
            if (timer != null) timer.cancel(false);
            runsIn(null);
            Thread.interrupted();
        }
        var why = stopReason();
        if (why == StopReason.LEASE_LOST || why == StopReason.CANCELLED) return null;
        if (failed == null) return result;
        if (why == StopReason.DEADLINE) return failure("not finished within its time limit of " + limit, true);
        if (why != null) return null;
        try {
            return failureOf(failed);
        } catch (Throwable broken) { // a method of the user's
            return failure(failed.getClass().getName(), true);
        }
    }

    private static String textOf(Object made) throws NonRetryableException {
        try {
            var tree = Json.tree(made);
            if (!tree.isObject()) throw new IllegalArgumentException("it is no object");
            return Json.write(tree);
        } catch (IllegalArgumentException error) {
            throw new NonRetryableException("the result has no JSON form: " + error.getMessage());
        }
    }

    Wire.Result failure(String message, boolean retryable) {
        var made = new Wire.Result(this, Wire.Kind.FAIL);
        var text = message == null ? "" : message.replace('\0', '\uFFFD');
        text = text.substring(0, Math.min(MAX_ERROR_CHARS, text.length()));
        // A lone surrogate has no JSON form, and an error text must never be the reason that a report is refused.
        made.errorMessage = new String(text.getBytes(StandardCharsets.UTF_8), StandardCharsets.UTF_8);
        made.retryable = retryable;
        return made;
    }

    private Wire.Result failureOf(Throwable error) {
        if (error instanceof StepException step) {
            var made = failure(step.getMessage(), step.retryable());
            made.errorCode = step.code();
            try {
                made.variables = step.variables() == null ? null : Json.write(Json.tree(step.variables()));
            } catch (IllegalArgumentException wrong) {
                return failure(wrong.getMessage(), false);
            }
            return made;
        }
        if (error instanceof LaterException later) {
            var made = new Wire.Result(this, Wire.Kind.PARK);
            made.until = later.until();
            made.signal = later.signal();
            return made;
        }
        if (error instanceof RetryException retry) {
            var made = failure(retry.getMessage(), true);
            made.retryAfterMs = retry.after() == null ? 0 : Math.max(0, retry.after().toMillis());
            return made;
        }
        var made = error instanceof NonRetryableException ? failure(error.getMessage(), false) : failure(error.toString(), true);
        made.stackTrace = stackOf(error);
        return made;
    }

    private static String stackOf(Throwable error) {
        var text = new StringWriter();
        error.printStackTrace(new PrintWriter(text));
        var made = text.toString().replace('\0', '\uFFFD');
        made = made.substring(Math.max(0, made.length() - MAX_STACK_CHARS));
        return new String(made.getBytes(StandardCharsets.UTF_8), StandardCharsets.UTF_8);
    }
}
