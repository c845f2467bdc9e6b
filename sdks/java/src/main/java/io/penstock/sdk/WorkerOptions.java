package io.penstock.sdk;

import java.time.Duration;
import java.util.function.Supplier;

/** How a worker works. */
public final class WorkerOptions {
    String workerId = "java-" + ProcessHandle.current().pid() + "-" + Long.toString(System.nanoTime(), 36);
    int concurrency = 16;
    Duration lease = Duration.ofSeconds(30);
    Duration pollWait = Duration.ofSeconds(20);
    Duration drainGrace = Duration.ofSeconds(20);
    int maxUnreported = 1000;
    Supplier<String> token;

    /** The holder of the leases, unique per running worker. */
    public WorkerOptions workerId(String id) {
        workerId = id;
        return this;
    }

    /** Jobs worked on at once; 16. */
    public WorkerOptions concurrency(int jobs) {
        if (jobs < 1) throw new IllegalArgumentException("concurrency is at least 1, not " + jobs);
        concurrency = jobs;
        return this;
    }

    /** 5 s to an hour; 30 s. After it others get the jobs of a dead worker. */
    public WorkerOptions lease(Duration length) {
        if (length.toSeconds() < 5 || length.toSeconds() > 3600) throw new IllegalArgumentException("a lease is 5 s to an hour, not " + length);
        lease = length;
        return this;
    }

    /** How long the engine holds a poll, at most 60 s; 20 s. */
    public WorkerOptions pollWait(Duration length) {
        pollWait = length;
        return this;
    }

    /** How long handlers may go on after the stop; 20 s. */
    public WorkerOptions drainGrace(Duration length) {
        drainGrace = length;
        return this;
    }

    /** With so many results that could not be delivered no new jobs are taken; 1000. */
    public WorkerOptions maxUnreported(int results) {
        maxUnreported = results;
        return this;
    }

    /** The bearer token, asked for before each call, so that it can be renewed. */
    public WorkerOptions token(Supplier<String> given) {
        token = given;
        return this;
    }
}
