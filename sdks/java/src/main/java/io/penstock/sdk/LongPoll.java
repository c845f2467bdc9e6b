package io.penstock.sdk;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.JsonNodeFactory;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.lang.System.Logger.Level;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;

/** Asks for jobs over REST, in polls that the engine holds until there is one. */
final class LongPoll implements Wire {
    private static final long HELD_POLL_MS = 500; // a poll that comes back empty sooner was not held: pause
    private static final long IDLE_MAX_MS = 1000;
    private static final JsonNodeFactory NODES = JsonNodeFactory.instance;
    private final Session session;
    private final Rest rest;
    private final Set<CompletableFuture<JsonNode>> asking = ConcurrentHashMap.newKeySet();
    private volatile CompletableFuture<JsonNode> watching;
    private volatile boolean stopped;

    LongPoll(Session session, Rest rest) {
        this.session = session;
        this.rest = rest;
    }

    @Override
    public void run() throws InterruptedException {
        Runnable change = () -> {
            if (session.isDraining()) asking.forEach(each -> each.cancel(true));
        };
        session.onChange(change);
        var watch = session.threads.submit(this::watch);
        var polls = new ArrayList<Future<?>>();
        for (var each : session.subscriptions) polls.add(session.threads.submit(() -> poll(each)));
        try {
            for (var each : polls) each.get();
            session.until(() -> stopped, Long.MAX_VALUE / 2);
        } catch (ExecutionException error) {
            throw Rest.errorOf(error);
        } finally {
            session.offChange(change);
            stop();
            watch.cancel(true);
        }
    }

    @Override
    public void stop() {
        stopped = true;
        asking.forEach(each -> each.cancel(true));
        var watch = watching;
        if (watch != null) watch.cancel(true);
        synchronized (session) {
            session.notifyAll();
        }
    }

    @Override
    public void close() {
        stop();
    }

    private Void poll(Session.Subscription subscription) throws InterruptedException {
        var outages = new Backoff(Backoff.MAX_PAUSE_MS);
        var idle = new Backoff(IDLE_MAX_MS);
        boolean answered = false;
        while (!session.isDraining() && !stopped) {
            int room = session.room(subscription);
            if (room == 0) {
                session.until(() -> session.room(subscription) > 0 || session.isDraining(), Long.MAX_VALUE / 2);
                continue;
            }
            long asked = System.nanoTime();
            try {
                var jobs = ask(subscription, room);
                if (jobs == null) break;
                answered = true;
                outages.reset();
                if (accept(jobs) || System.nanoTime() - asked >= HELD_POLL_MS * 1_000_000) idle.reset();
                else pause(idle.pause(null));
            } catch (PenstockException error) {
                if (!error.mayPass(answered)) throw error;
                Session.LOG.log(Level.WARNING, "no jobs from the engine: {0}", error.getMessage());
                pause(outages.pause(error));
            }
        }
        return null;
    }

    private void pause(long ms) throws InterruptedException {
        session.until(() -> session.isDraining() || stopped, ms);
    }

    /** The jobs of one poll; null when it was broken off. */
    private List<Job.Data> ask(Session.Subscription subscription, int room) throws InterruptedException {
        var body = body().put("maxJobs", room).put("leaseSeconds", session.options.lease.toSeconds())
            .put("waitSeconds", session.options.pollWait.toSeconds());
        subscription.types.forEach(body.putArray("jobTypes")::add);
        var call = rest.call(new Rest.Request("POST", "/v1/jobs/poll", body, null, held()));
        asking.add(call);
        try {
            if (session.isDraining()) call.cancel(true);
            var got = call.get();
            if (!got.path("jobs").isArray()) throw new PenstockException("internal-error", "the answer to a poll has no jobs", 200, true);
            var jobs = new ArrayList<Job.Data>();
            for (var each : got.get("jobs")) jobs.add(Json.MAPPER.convertValue(each, Job.Data.class));
            if (jobs.stream().anyMatch(each -> each == null || each.id() == null || each.jobType() == null))
                throw new IllegalArgumentException("a job without an id or a type");
            return jobs;
        } catch (IllegalArgumentException error) {
            throw new PenstockException("internal-error", "the engine sent what is no job: " + error.getMessage(), 200, true);
        } catch (CancellationException brokenOff) {
            return null;
        } catch (ExecutionException error) {
            if (session.isDraining() || stopped) return null; // java.net.http may say so of a call that was cancelled
            throw Rest.errorOf(error);
        } finally {
            asking.remove(call);
        }
    }

    private Duration held() {
        return session.options.pollWait.plusMillis(Session.CALL_LIMIT_MS);
    }

    /** Whether any of the jobs was of use. */
    private boolean accept(List<Job.Data> jobs) {
        var back = session.accept(jobs);
        if (!back.isEmpty())
            try {
                send(Kind.RELEASE, back, Session.CALL_LIMIT_MS);
            } catch (PenstockException error) {
                Session.LOG.log(Level.DEBUG, "their leases will end: {0}", error.getMessage());
            }
        return back.size() < jobs.size();
    }

    /** Hears at once of jobs that are cancelled. Engines that don't tell leave it to the heartbeats. */
    private void watch() {
        var pauses = new Backoff(Backoff.MAX_PAUSE_MS);
        try {
            while (!stopped) {
                long asked = System.nanoTime();
                try {
                    var body = body().put("waitSeconds", session.options.pollWait.toSeconds());
                    watching = rest.call(new Rest.Request("POST", "/v1/jobs/lost", body, null, held()));
                    var lost = watching.get().path("lost");
                    for (var each : lost) {
                        var why = each.path("outcome").asText().equals("cancelled") ? StopReason.CANCELLED : StopReason.LEASE_LOST;
                        session.lose(each.path("jobId").asText(), each.path("attempt").asInt(), why);
                    }
                    if (!lost.isEmpty() || System.nanoTime() - asked >= HELD_POLL_MS * 1_000_000) pauses.reset();
                    else Thread.sleep(pauses.pause(null));
                } catch (ExecutionException error) {
                    var told = Rest.errorOf(error);
                    if (!told.mayPass(true)) return;
                    Thread.sleep(pauses.pause(told));
                }
            }
        } catch (CancellationException | InterruptedException end) {
            Thread.currentThread().interrupt();
        }
    }

    private ObjectNode body() {
        return NODES.objectNode().put("workerId", session.options.workerId);
    }

    @Override
    public List<Outcome> send(Kind kind, List<Result> items, long timeoutMs) {
        if (kind == Kind.PARK) return items.stream().map(each -> park(each, timeoutMs)).toList();
        var body = body();
        var told = body.putArray(kind == Kind.RELEASE ? "jobs" : "results");
        for (var each : items) {
            var item = told.addObject().put("jobId", each.jobId).put("attempt", each.attempt);
            if (each.variables != null) item.set("variables", Json.read(each.variables));
            if (kind != Kind.FAIL) continue;
            item.put("retryable", each.retryable).put("errorMessage", each.errorMessage);
            if (!each.errorCode.isEmpty()) item.put("errorCode", each.errorCode);
            if (!each.stackTrace.isEmpty()) item.put("stackTrace", each.stackTrace);
            if (each.retryAfterMs > 0) item.put("retryAfterSeconds", each.retryAfterMs / 1000.0);
        }
        return outcomes(kind.name().toLowerCase(java.util.Locale.ROOT), body, timeoutMs);
    }

    /** REST has no call for many. */
    private Outcome park(Result item, long timeoutMs) {
        var body = body().put("attempt", item.attempt);
        if (item.until != null) body.put("until", item.until.toString());
        if (item.signal != null) body.put("signal", item.signal);
        try {
            answer(new Rest.Request("POST", "/v1/jobs/" + Client.part(item.jobId) + "/park", body, null, Duration.ofMillis(timeoutMs)));
            return new Outcome(item.jobId, "ok", "");
        } catch (PenstockException error) {
            if (Set.of("lease-lost", "cancelled", "not-found").contains(error.code())) return new Outcome(item.jobId, error.code(), error.reason());
            if (error.isUnavailable()) return new Outcome(item.jobId, "unavailable", error.reason());
            if (error.code().equals("bad-request")) return new Outcome(item.jobId, "invalid", error.getMessage());
            throw error;
        }
    }

    @Override
    public List<Outcome> beat(List<Beat> items, long timeoutMs) {
        var body = body();
        var jobs = body.putArray("jobs");
        for (var each : items) {
            var item = jobs.addObject().put("jobId", each.jobId()).put("attempt", each.attempt())
                .put("leaseSeconds", session.options.lease.toSeconds());
            if (each.checkpoint() != null) item.set("checkpoint", Json.read(each.checkpoint()));
            if (each.progress() != null) item.set("progress", Json.read(each.progress()));
        }
        return outcomes("heartbeat", body, timeoutMs);
    }

    private List<Outcome> outcomes(String path, ObjectNode body, long timeoutMs) {
        var got = answer(new Rest.Request("POST", "/v1/jobs/" + path, body, null, Duration.ofMillis(timeoutMs)));
        if (!got.path("results").isArray()) throw new PenstockException("internal-error", "an answer without results", 200, true);
        var outcomes = new ArrayList<Outcome>();
        for (var each : got.get("results"))
            outcomes.add(new Outcome(each.path("jobId").asText(), each.path("outcome").asText(), each.path("reason").asText("")));
        return outcomes;
    }

    private JsonNode answer(Rest.Request request) {
        try {
            return rest.call(request).get();
        } catch (ExecutionException error) {
            throw Rest.errorOf(error);
        } catch (InterruptedException end) {
            Thread.currentThread().interrupt();
            throw new PenstockException("connection-failed", "interrupted", 0, true);
        }
    }
}
