package io.penstock.sdk;

import java.time.Duration;
import java.util.LinkedHashMap;
import java.util.Map;
import sun.misc.Signal;

/** Takes jobs from an engine, runs their handlers, reports the results. */
public final class Worker {
    record Registered(Handler handler, int limit, Duration timeout) {}

    private final String engine;
    private final WorkerOptions options;
    private final Map<String, Registered> handlers = new LinkedHashMap<>();
    private volatile Session session;
    private boolean starting; // signals are heard
    private boolean stopEarly; // one came before there was a session

    public Worker(String engine) {
        this(engine, new WorkerOptions());
    }

    /** The engine's URL: http:// or https:// for long polls, grpc:// or grpcs:// for the Work stream. */
    public Worker(String engine, WorkerOptions options) {
        if (!engine.matches("(https?|grpcs?)://[^/].*"))
            throw new IllegalArgumentException("not an http://, https://, grpc:// or grpcs:// URL: " + engine);
        this.engine = engine;
        this.options = options;
    }

    /** Registers the handler of a job type. */
    public Worker handle(String jobType, Handler handler) {
        return handle(jobType, 0, null, handler);
    }

    /** The variables come as a type of yours; what does not fit fails the job for good. */
    public <V> Worker handle(String jobType, Class<V> variables, Handler.Typed<V> handler) {
        return handle(jobType, 0, null, job -> handler.handle(job, job.variables(variables)));
    }

    /** At most so many jobs of the type at once (0: as the worker), and a time limit of one attempt (null: none). */
    public Worker handle(String jobType, int limit, Duration timeout, Handler handler) {
        if (handlers.putIfAbsent(jobType, new Registered(handler, limit, timeout)) != null)
            throw new IllegalArgumentException("job type " + jobType + " has a handler already");
        return this;
    }

    /** Takes on no more jobs and ends when those held are done, within the grace. Again: ends the grace now. */
    public synchronized void stop() {
        if (session != null) session.drain();
        else if (starting) stopEarly = true;
    }

    /**
     * Works until {@link #stop} is called or this thread is interrupted, then drains. Throws PenstockException only when
     * the engine refuses to give jobs to this worker at all; an engine that is away is waited for.
     */
    public void run() {
        if (handlers.isEmpty()) throw new IllegalStateException("the worker has no handlers");
        var made = new Session(options, handlers);
        Wire wire = engine.startsWith("http")
            ? new LongPoll(made, new Rest(engine, options.token, made.threads))
            : new WorkStream(made, engine);
        synchronized (this) {
            session = made;
            if (stopEarly) made.drain();
        }
        try {
            made.run(wire);
        } finally {
            session = null;
            wire.close();
        }
    }

    /** {@link #run} for a program that is only this worker: SIGTERM and SIGINT drain it, a second one ends the grace. */
    public void runUntilSignal() {
        synchronized (this) {
            starting = true;
        }
        for (var name : new String[] {"TERM", "INT"}) Signal.handle(new Signal(name), signal -> stop());
        run();
    }
}
