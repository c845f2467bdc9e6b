package io.penstock.sdk;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.JsonNode;
import java.net.URLEncoder;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;
import java.util.function.Supplier;

/**
 * Calls the engine's REST API. Repeats calls that are safe to repeat while the engine is away. The futures fail with
 * {@link PenstockException}.
 */
public final class Client {
    private static final long CALL_MS = 30_000;
    private static final Duration EXCHANGE = Duration.ofSeconds(15);
    private static final int LIST_PART = 200;
    private final Rest rest;

    public Client(String engine) {
        this(engine, null);
    }

    /** The token, which may be null, is asked for before each call, so that it can be renewed. */
    public Client(String engine, Supplier<String> token) {
        if (!engine.matches("https?://[^/].*")) throw new IllegalArgumentException("not an http:// or https:// URL: " + engine);
        rest = new Rest(engine, token);
    }

    /** A message for whoever waits for its name and key; what is null is left out. The client makes an id where there is none. */
    public record Message(String name, String correlationKey, Map<String, ?> variables, String ttl, String messageId, boolean toAll) {}

    public record Receiver(String instanceId, String stepId) {}

    /** Who received a message, and whether it is kept for a wait that is to come. */
    public record Published(List<Receiver> delivered, boolean kept) {}

    /** Uploads a definition: its JSON text. */
    public CompletableFuture<Void> uploadDefinition(String definition) {
        return call("POST", "/v1/definitions", Json.read(definition)).thenApply(answer -> null);
    }

    public CompletableFuture<Instance> start(StartRequest request) {
        var key = request.idempotencyKey == null ? newKey() : request.idempotencyKey;
        int wait = request.waitSeconds == null ? 0 : request.waitSeconds;
        return repeated("POST", "/v1/instances", request, key, wait, false).thenApply(Client::instance);
    }

    public CompletableFuture<Instance> get(String id) {
        return get(id, 0);
    }

    /** The instance when it has ended, or after so long (60 at most). */
    public CompletableFuture<Instance> get(String id, int waitSeconds) {
        var query = waitSeconds > 0 ? "?waitSeconds=" + waitSeconds : "";
        return repeated("GET", "/v1/instances/" + part(id) + query, null, null, waitSeconds, false).thenApply(Client::instance);
    }

    /** Lets a step that waits go on; the variables, which may be null, are merged. */
    public CompletableFuture<Void> signal(String instanceId, String stepId, Map<String, ?> variables) {
        return signal(instanceId, stepId, variables, false, null);
    }

    /** With buffer, or an id of your own, a signal that comes before its wait is open is kept until then. */
    public CompletableFuture<Void> signal(String instanceId, String stepId, Map<String, ?> variables, boolean buffer, String signalId) {
        var query = new LinkedHashMap<String, String>();
        if (buffer) query.put("buffer", "true");
        if (signalId != null) query.put("signalId", signalId);
        var path = "/v1/instances/" + part(instanceId) + "/signals/" + part(stepId) + queryOf(query);
        var body = variables == null ? Map.of() : Json.tree(variables);
        return repeated("POST", path, body, signalId == null ? newKey() : null, 0, false).thenApply(answer -> null);
    }

    public CompletableFuture<Published> publish(Message message) {
        var body = new LinkedHashMap<String, Object>();
        body.put("name", message.name());
        body.put("correlationKey", message.correlationKey());
        if (message.variables() != null) body.put("variables", Json.tree(message.variables()));
        if (message.ttl() != null) body.put("ttl", message.ttl());
        body.put("messageId", message.messageId() == null ? newKey() : message.messageId());
        if (message.toAll()) body.put("deliver", "ALL");
        return call("POST", "/v1/messages", body).thenApply(answer -> as(answer, Published.class));
    }

    /** Cancels an instance. An answer that was lost is no error when the instance turns out to be cancelled. */
    public CompletableFuture<Instance> cancel(String id, String reason) {
        var body = reason == null ? Map.of() : Map.of("reason", reason);
        return repeated("POST", "/v1/instances/" + part(id) + "/cancel", body, null, 0, true).thenApply(Client::instance)
            .exceptionallyCompose(error -> {
                if (!Rest.errorOf(error).maybeApplied()) return CompletableFuture.failedFuture(error);
                return get(id).thenCompose(found -> found.status().equals("CANCELLED")
                    ? CompletableFuture.completedFuture(found)
                    : CompletableFuture.failedFuture(error));
            });
    }

    /** Reopens the failed step of a failed instance, or goes on at a step (which may be null). Not repeated when its answer is lost. */
    public CompletableFuture<Instance> retry(String id, String fromStepId, String note) {
        var body = new LinkedHashMap<String, String>();
        if (fromStepId != null) body.put("fromStepId", fromStepId);
        if (note != null) body.put("note", note);
        return repeated("POST", "/v1/instances/" + part(id) + "/retry", body, null, 0, true).thenApply(Client::instance);
    }

    /**
     * At most so many (1 to 200) instances after a cursor (null: the first), newest first. The filter has REST's names:
     * definitionId, status, businessKey, instanceKey, flowKey, …
     */
    public CompletableFuture<Instance.Page> list(Map<String, String> filter, int limit, String cursor) {
        var query = new LinkedHashMap<>(filter);
        query.put("limit", String.valueOf(limit));
        if (cursor != null) query.put("cursor", cursor);
        return call("GET", "/v1/instances" + queryOf(query), null).thenApply(answer -> as(answer, Instance.Page.class));
    }

    /** Reads all instances that match, page after page: none is left out and none comes twice. Blocks. */
    public void forEach(Map<String, String> filter, Consumer<Instance> action) {
        String cursor = null;
        do {
            var page = list(filter, LIST_PART, cursor).join();
            page.items().forEach(action);
            cursor = page.next();
        } while (cursor != null);
    }

    private CompletableFuture<JsonNode> call(String method, String path, Object body) {
        return repeated(method, path, body, null, 0, false);
    }

    private CompletableFuture<JsonNode> repeated(String method, String path, Object body, String key, int hold, boolean once) {
        var request = new Rest.Request(method, path, body, key, EXCHANGE.plusSeconds(hold));
        long deadline = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(CALL_MS + hold * 1000L);
        return attempt(request, once, deadline, new Backoff(Backoff.MAX_PAUSE_MS));
    }

    private CompletableFuture<JsonNode> attempt(Rest.Request request, boolean once, long deadline, Backoff pauses) {
        return rest.call(request).exceptionallyCompose(failed -> {
            var error = Rest.errorOf(failed);
            long pause = pauses.pause(error);
            boolean late = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(pause) > deadline;
            if (!error.isUnavailable() || (once && error.maybeApplied()) || late) return CompletableFuture.failedFuture(error);
            return CompletableFuture.supplyAsync(() -> null, CompletableFuture.delayedExecutor(pause, TimeUnit.MILLISECONDS))
                .thenCompose(nothing -> attempt(request, once, deadline, pauses));
        });
    }

    private static Instance instance(JsonNode answer) {
        return as(answer, Instance.class);
    }

    private static <T> T as(JsonNode answer, Class<T> type) {
        try {
            return Json.MAPPER.treeToValue(answer, type);
        } catch (JsonProcessingException error) {
            throw new PenstockException("internal-error", "unreadable answer: " + error.getOriginalMessage(), 200, true);
        }
    }

    private static String newKey() {
        return UUID.randomUUID().toString();
    }

    static String part(String text) {
        return URLEncoder.encode(text, StandardCharsets.UTF_8).replace("+", "%20");
    }

    private static String queryOf(Map<String, String> query) {
        var parts = new ArrayList<String>();
        query.forEach((name, value) -> parts.add(name + "=" + part(value)));
        return parts.isEmpty() ? "" : "?" + String.join("&", parts);
    }
}
