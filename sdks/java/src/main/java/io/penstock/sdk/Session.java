package io.penstock.sdk;

import io.penstock.sdk.Wire.Kind;
import io.penstock.sdk.Wire.Outcome;
import io.penstock.sdk.Wire.Result;
import java.lang.System.Logger.Level;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Deque;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.ThreadFactory;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.function.BooleanSupplier;
import java.util.function.Predicate;

/** One run of a worker. Its monitor guards what it holds; every change is notified. */
final class Session {
    static final long CALL_LIMIT_MS = 15_000;
    static final System.Logger LOG = System.getLogger("io.penstock.sdk");
    private static final long CLEAN_UP_MS = 5000; // after the grace, for handlers that were told to stop
    private static final long LAST_CALLS_MS = 5000; // for the last results, and to give jobs back
    private static final long MAX_WAITING_MS = 5000; // a job that waits for its turn for longer goes back
    private static final int MAX_BATCH = 200;
    private static final int MAX_BEATS = 500;
    private static final int MAX_FAULTS = 8; // of a report that the engine stumbles over
    private static final long HEARTBEAT_LIMIT_MS = 10_000;

    /** Job types that are asked for together: those without a limit of their own, or one with. */
    static final class Subscription {
        final List<String> types = new ArrayList<>();
        final int limit;
        int active;
        int running;

        Subscription(int limit) {
            this.limit = limit;
        }
    }

    final WorkerOptions options;
    final List<Subscription> subscriptions = new ArrayList<>();
    final ExecutorService threads;
    final ScheduledExecutorService timers;
    private final Map<String, Worker.Registered> handlers;
    private final Map<String, Subscription> byType = new LinkedHashMap<>();
    private final Map<String, HeldJob> held = new LinkedHashMap<>();
    private final Deque<HeldJob> waiting = new ArrayDeque<>();
    private final Map<Kind, Deque<Result>> queues = 
        Map.of(Kind.COMPLETE, new ArrayDeque<>(), Kind.FAIL, new ArrayDeque<>(), Kind.PARK, new ArrayDeque<>());
    private final List<Runnable> listeners = new CopyOnWriteArrayList<>();
    private Wire wire;
    private int active;
    private int running;
    private int unreported;
    private boolean draining;
    private boolean graceOver;
    private boolean ended;
    private boolean hurry;
    private boolean beatsFail;
    private PenstockException refusal;

    Session(WorkerOptions options, Map<String, Worker.Registered> handlers) {
        this.options = options;
        this.handlers = Map.copyOf(handlers);
        ThreadFactory daemons = work -> {
            var thread = new Thread(work, "penstock");
            thread.setDaemon(true);
            return thread;
        };
        threads = Executors.newCachedThreadPool(daemons);
        timers = Executors.newSingleThreadScheduledExecutor(daemons);
        var shared = new Subscription(options.concurrency);
        handlers.forEach((type, each) -> {
            var own = each.limit() > 0 ? new Subscription(each.limit()) : shared;
            own.types.add(type);
            byType.put(type, own);
            if (own != shared) subscriptions.add(own);
        });
        if (!shared.types.isEmpty()) subscriptions.add(shared);
    }

    void run(Wire given) {
        wire = given;
        LOG.log(Level.INFO, "worker {0} takes {1}", options.workerId, byType.keySet());
        var bringing = threads.submit(this::bring);
        var services = List.of(threads.submit(() -> deliver(Kind.COMPLETE)), threads.submit(() -> deliver(Kind.FAIL)),
            threads.submit(() -> deliver(Kind.PARK)), threads.submit(this::keepLeases), threads.submit(this::returnWaiting));
        try {
            until(() -> draining, Long.MAX_VALUE / 2);
        } catch (InterruptedException interrupted) {
            drain();
        }
        try {
            finish();
            wire.stop();
            bringing.get(10, TimeUnit.SECONDS);
        } catch (Exception stopped) {
            LOG.log(Level.DEBUG, "the end was cut short", stopped);
        }
        synchronized (this) {
            ended = true;
            notifyChange();
        }
        services.forEach(each -> each.cancel(true));
        timers.shutdownNow();
        threads.shutdownNow();
        LOG.log(Level.INFO, "worker {0} has stopped", options.workerId);
        if (refusal != null) throw refusal;
    }

    private void bring() {
        try {
            wire.run();
        } catch (PenstockException error) {
            LOG.log(Level.ERROR, "the engine gives this worker no jobs: {0}; to do: {1}", error.getMessage(), error.whatToDo());
            synchronized (this) {
                refusal = error;
                if (!draining) drain();
            }
        } catch (InterruptedException ended) {
            Thread.currentThread().interrupt();
        }
    }

    synchronized void drain() {
        if (draining) graceOver = true;
        draining = true;
        notifyChange();
    }

    private void finish() throws InterruptedException {
        giveBack(matching(each -> !each.begun));
        until(() -> active == 0 || graceOver, options.drainGrace.toMillis());
        for (var each : matching(one -> one.begun)) if (!isQueued(each)) each.stop(StopReason.STOPPING);
        until(() -> active == 0, CLEAN_UP_MS);
        until(() -> unreported == 0, LAST_CALLS_MS);
        synchronized (this) {
            if (unreported > 0 || active > 0)
                LOG.log(Level.ERROR, "the engine did not take {0} results, {1} handlers go on: their jobs will be done again", unreported, active);
        }
        giveBack(matching(each -> true));
    }

    private synchronized boolean isQueued(HeldJob job) {
        return queues.values().stream().anyMatch(queue -> queue.stream().anyMatch(each -> each.held == job));
    }

    // -- changes

    void onChange(Runnable listener) {
        listeners.add(listener);
    }

    void offChange(Runnable listener) {
        listeners.remove(listener);
    }

    /** The caller holds the monitor. */
    private void notifyChange() {
        notifyAll();
        listeners.forEach(Runnable::run);
    }

    synchronized void until(BooleanSupplier holds, long limitMs) throws InterruptedException {
        long deadline = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(Math.min(limitMs, TimeUnit.DAYS.toMillis(10_000)));
        while (!holds.getAsBoolean() && !ended) {
            long left = TimeUnit.NANOSECONDS.toMillis(deadline - System.nanoTime());
            if (left <= 0) return;
            wait(left);
        }
    }

    synchronized boolean isDraining() {
        return draining;
    }

    private synchronized List<HeldJob> matching(Predicate<HeldJob> wanted) {
        return held.values().stream().filter(wanted).toList();
    }

    // -- jobs

    /** How many more jobs of a subscription the worker takes now. */
    synchronized int room(Subscription subscription) {
        if (draining || unreported >= options.maxUnreported) return 0;
        return Math.max(0, Math.min(options.concurrency - active, subscription.limit - subscription.active));
    }

    /** Takes jobs on. Returns those that the worker has no use for: they are to be given back. */
    synchronized List<Result> accept(Collection<Job.Data> jobs) {
        var back = new ArrayList<Result>();
        for (var job : jobs) {
            var subscription = byType.get(job.jobType());
            var made = new HeldJob(this, job, subscription);
            if (subscription == null || draining) {
                back.add(new Result(made, Kind.RELEASE));
                continue;
            }
            if (held.putIfAbsent(made.key(), made) != null) continue; // it came twice
            active++;
            subscription.active++;
            waiting.add(made);
        }
        beginWaiting();
        return back;
    }

    private void beginWaiting() {
        for (var each = waiting.iterator(); each.hasNext();) {
            var job = each.next();
            if (job.settled) {
                each.remove();
                leave(job);
            } else if (running < options.concurrency && job.subscription.running < job.subscription.limit) {
                each.remove();
                job.begun = true;
                running++;
                job.subscription.running++;
                threads.execute(() -> work(job));
            }
        }
    }

    private void leave(HeldJob job) {
        active--;
        job.subscription.active--;
        notifyChange();
    }

    private void work(HeldJob job) {
        var result = job.run(handlers.get(job.data.jobType()));
        if (result != null && result.kind == Kind.FAIL)
            LOG.log(Level.WARNING, "job {0} failed: {1}", result.jobId, result.errorMessage);
        synchronized (this) {
            running--;
            job.subscription.running--;
            if (result != null && !job.settled) {
                unreported++;
                queues.get(result.kind).add(result);
            }
            leave(job);
            beginWaiting();
        }
    }

    /** Takes a job away that is not this worker's any more: its handler stops, and nothing is reported. */
    void lose(String jobId, int attempt, StopReason why) {
        HeldJob job;
        synchronized (this) {
            job = held.remove(jobId + "/" + attempt);
            if (job == null) return;
            job.settled = true;
            beginWaiting();
            notifyChange();
        }
        LOG.log(Level.WARNING, "job {0} lost: {1}", jobId, why);
        job.stop(why);
    }

    private void giveBack(List<HeldJob> jobs) {
        var items = new ArrayList<Result>();
        synchronized (this) {
            for (var each : jobs) {
                if (each.settled) continue;
                each.settled = true;
                held.remove(each.key());
                items.add(new Result(each, Kind.RELEASE));
            }
            beginWaiting();
        }
        jobs.forEach(each -> each.stop(StopReason.STOPPING));
        for (int at = 0; at < items.size(); at += MAX_BATCH)
            try {
                wire.send(Kind.RELEASE, items.subList(at, Math.min(at + MAX_BATCH, items.size())), LAST_CALLS_MS);
            } catch (PenstockException error) {
                LOG.log(Level.WARNING, "jobs could not be given back, their leases will end: {0}", error.getMessage());
                return;
            }
    }

    private void returnWaiting() {
        try {
            while (true) {
                Thread.sleep(MAX_WAITING_MS / 2);
                long since = System.nanoTime() - TimeUnit.MILLISECONDS.toNanos(MAX_WAITING_MS);
                giveBack(matching(each -> !each.begun && each.receivedAt < since));
            }
        } catch (InterruptedException end) {
            Thread.currentThread().interrupt();
        }
    }

    // -- leases

    private void keepLeases() {
        long lease = options.lease.toNanos();
        try {
            while (true) {
                until(() -> hurry, options.lease.toMillis() / 12);
                synchronized (this) {
                    hurry = false;
                    if (ended) return;
                }
                long before = System.nanoTime() + lease * 2 / 3 + lease / 12;
                var due = matching(each -> each.leaseEndsAt <= before);
                for (int at = 0; at < due.size(); at += MAX_BEATS) extend(due.subList(at, Math.min(at + MAX_BEATS, due.size())));
            }
        } catch (InterruptedException end) {
            Thread.currentThread().interrupt();
        }
    }

    /** Asks for all leases at once, to learn which jobs were given to others. */
    synchronized void renew() {
        held.values().forEach(each -> each.leaseEndsAt = System.nanoTime());
        hurry = true;
        notifyChange();
    }

    private void extend(List<HeldJob> due) {
        long sentAt = System.nanoTime();
        var items = due.stream().map(each -> new Wire.Beat(each.data.id(), each.data.attempt(), null, null)).toList();
        try {
            var outcomes = wire.beat(items, Math.min(options.lease.toMillis() / 3, HEARTBEAT_LIMIT_MS));
            for (int at = 0; at < Math.min(due.size(), outcomes.size()); at++) extended(due.get(at), outcomes.get(at), sentAt);
            beatsFail = false;
        } catch (PenstockException error) {
            if (!beatsFail)
                LOG.log(Level.WARNING, "heartbeats fail, others get {0} jobs unless the engine answers within the lease: {1}", due.size(), error.getMessage());
            beatsFail = true;
        }
    }

    private void extended(HeldJob job, Outcome told, long sentAt) {
        switch (told.outcome()) {
            case "ok" -> {
                synchronized (this) {
                    job.leaseEndsAt = sentAt + options.lease.toNanos();
                }
            }
            case "cancelled" -> lose(job.data.id(), job.data.attempt(), StopReason.CANCELLED);
            case "lease-lost", "not-found", "already-completed" -> lose(job.data.id(), job.data.attempt(), StopReason.LEASE_LOST);
            default -> LOG.log(Level.DEBUG, "heartbeat: {0}", told);
        }
    }

    void report(HeldJob job, String checkpoint, String progress) throws InterruptedException {
        var pauses = new Backoff(Backoff.MAX_PAUSE_MS);
        while (true) {
            if (job.stopReason() != null) throw new InterruptedException(job.stopReason().toString());
            long sentAt = System.nanoTime();
            try {
                var told = wire.beat(List.of(new Wire.Beat(job.data.id(), job.data.attempt(), checkpoint, progress)), CALL_LIMIT_MS).get(0);
                extended(job, told, sentAt);
                if (told.outcome().equals("ok")) return;
                if (job.stopReason() == null) throw new PenstockException(told.outcome(), told.reason(), 0, false);
            } catch (PenstockException error) {
                if (!error.isUnavailable()) throw error;
                Thread.sleep(pauses.pause(error));
            }
        }
    }

    // -- results

    private synchronized List<Result> next(Kind kind) throws InterruptedException {
        var queue = queues.get(kind);
        until(() -> !queue.isEmpty(), Long.MAX_VALUE / 2);
        var batch = new ArrayList<Result>();
        while (!queue.isEmpty() && batch.size() < MAX_BATCH) batch.add(queue.poll());
        return batch;
    }

    /** Sends results of one kind: those that came while the last batch was under way are the next one. */
    private void deliver(Kind kind) {
        var pauses = new Backoff(Backoff.MAX_PAUSE_MS);
        try {
            while (true) {
                var batch = next(kind);
                if (batch.isEmpty()) return;
                var again = new ArrayList<Result>();
                var error = exchange(kind, batch, again);
                synchronized (this) {
                    for (int at = again.size() - 1; at >= 0; at--) queues.get(kind).addFirst(again.get(at));
                }
                if (again.isEmpty()) pauses.reset();
                else Thread.sleep(pauses.pause(error));
            }
        } catch (InterruptedException end) {
            Thread.currentThread().interrupt();
        }
    }

    /** Sends a batch, or its parts where it is refused as a whole. What is to be sent again is added to {@code again}. */
    private PenstockException exchange(Kind kind, List<Result> batch, List<Result> again) {
        try {
            var outcomes = wire.send(kind, batch, CALL_LIMIT_MS);
            if (outcomes.size() != batch.size()) throw new PenstockException("internal-error", "an answer without all outcomes", 0, true);
            for (int at = 0; at < batch.size(); at++) {
                if (outcomes.get(at).outcome().equals("unavailable")) again.add(batch.get(at));
                else settle(batch.get(at), outcomes.get(at));
            }
            return null;
        } catch (PenstockException error) {
            if (error.isUnavailable() || error.code().equals("unauthenticated")) {
                again.addAll(batch);
            } else if (batch.size() > 1) {
                int middle = batch.size() / 2;
                exchange(kind, batch.subList(0, middle), again);
                exchange(kind, batch.subList(middle, batch.size()), again);
            } else if (error.code().equals("internal-error") && ++batch.get(0).faults < MAX_FAULTS) {
                again.add(batch.get(0));
            } else {
                settle(batch.get(0), new Outcome(batch.get(0).jobId, "invalid", error.getMessage()));
            }
            return error;
        }
    }

    private synchronized void settle(Result item, Outcome told) {
        if (told.outcome().equals("invalid") && item.kind != Kind.FAIL) {
            LOG.log(Level.ERROR, "the engine refused the result of job {0}: {1}", item.jobId, told.reason());
            queues.get(Kind.FAIL).add(item.held.failure("the engine refused the result: " + told.reason(), false));
        } else if (told.outcome().equals("invalid") && item.variables != null) {
            item.variables = null;
            queues.get(Kind.FAIL).add(item);
        } else {
            if (!told.outcome().equals("ok") && !told.outcome().equals("already-completed"))
                LOG.log(Level.WARNING, "result of job {0} not taken: {1} {2}", item.jobId, told.outcome(), told.reason());
            held.remove(item.held.key());
            item.held.settled = true;
            unreported--;
        }
        notifyChange();
    }
}
