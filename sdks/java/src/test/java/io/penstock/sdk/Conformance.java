package io.penstock.sdk;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletionException;
import com.fasterxml.jackson.databind.JsonNode;

/** The Java worker and client as programs under test: sdks/conformance/README.md. */
public final class Conformance {
    record Order(String name, int count, List<String> tags) {}

    private Conformance() {}

    static synchronized void emit(Map<String, ?> event) {
        var line = (Json.write(event) + "\n").getBytes(StandardCharsets.UTF_8);
        System.out.write(line, 0, line.length);
        System.out.flush();
    }

    static Object behave(Job job) throws Exception {
        var told = new LinkedHashMap<String, Object>(Map.of("job", job.id(), "attempt", job.attempt(), "instance", job.instanceId()));
        var begin = new LinkedHashMap<>(told);
        begin.putAll(Map.of("event", "begin", "type", job.type(), "idempotencyKey", job.idempotencyKey()));
        emit(begin);
        try {
            var steps = Json.tree(job.variables().get("do"));
            return act(job, steps.get(Math.min(job.attempt(), steps.size()) - 1));
        } catch (Exception error) {
            if (job.stopReason() != null) {
                var stop = new LinkedHashMap<>(told);
                stop.putAll(Map.of("event", "stop", "reason", job.stopReason().toString()));
                emit(stop);
            }
            throw error;
        } finally {
            told.put("event", "end");
            emit(told);
        }
    }

    private static Object act(Job job, JsonNode step) throws Exception {
        if (step.has("report")) job.report(step.get("report").get("checkpoint"), step.get("report").get("progress"));
        Object slept = step.has("variables") ? step.get("variables") : Map.of("slept", true);
        switch (step.get("op").asText()) {
            case "complete":
                return step.get("variables");
            case "none":
                return null;
            case "echo":
                return Map.of("echo", job.variables().get("input"));
            case "context":
                var context = new HashMap<String, Object>(Map.of("id", job.id(), "jobType", job.type(), "instanceId", job.instanceId(),
                    "stepId", job.stepId(), "attempt", job.attempt(), "retriesRemaining", job.retriesRemaining(),
                    "definitionId", job.definitionId(), "definitionVersion", job.definitionVersion(), "idempotencyKey", job.idempotencyKey()));
                context.put("businessKey", job.businessKey());
                return Map.of("context", context);
            case "checkpoint":
                var saw = new HashMap<String, Object>();
                saw.put("saw", job.checkpoint());
                return saw;
            case "notJson":
                return Map.of("value", Double.NaN);
            case "nul":
                return Map.of("text", "a\0b");
            case "throw":
                throw new Error(step.path("message").asText("boom"));
            case "fail":
                throw failureOf(step);
            case "sleep":
                Thread.sleep((long) (step.get("seconds").asDouble() * 1000));
                return slept;
            case "stubborn":
                long end = System.nanoTime() + (long) (step.get("seconds").asDouble() * 1e9);
                while (System.nanoTime() < end)
                    try {
                        Thread.sleep(20);
                    } catch (InterruptedException ignored) {
                        continue;
                    }
                return slept;
            case "later":
                throw new LaterException(in(step));
            case "waitFor":
                throw new LaterException(step.get("signal").asText(), step.has("seconds") ? in(step) : null);
            case "worst":
                return worst(step.get("way").asInt());
            case "crash":
                new ProcessBuilder("kill", "-9", String.valueOf(ProcessHandle.current().pid())).start().waitFor();
                Thread.sleep(60_000);
                return null;
            default:
                throw new IllegalArgumentException("unknown op " + step);
        }
    }

    private static Instant in(JsonNode step) {
        return Instant.now().plusMillis((long) (step.get("seconds").asDouble() * 1000));
    }

    /** Breaks whoever looks at it. */
    private static final class Nasty extends Error {
        @Override
        public String getMessage() {
            return getMessage() + " for ever";
        }
    }

    private static Object worst(int way) {
        if (way == 1) throw new Nasty();
        if (way == 2) return worst(way) + "";
        if (way == 3) return new Object() {
            public String getValue() {
                throw new Nasty();
            }
        };
        throw new ThreadDeath();
    }

    private static Exception failureOf(JsonNode step) {
        var message = step.path("message").asText("");
        boolean retryable = step.path("retryable").asBoolean(true);
        if (step.has("code")) {
            Map<String, Object> variables = step.has("variables") ? Json.VALUES.convertValue(step.get("variables"), Json.MAP) : null;
            return new StepException(step.get("code").asText(), message, variables, retryable);
        }
        if (!retryable) return new NonRetryableException(message);
        return new RetryException(message, Duration.ofMillis((long) (step.path("retryAfterSeconds").asDouble(0) * 1000)));
    }

    private static void runWorker() {
        var given = Json.read(System.getenv("CONFORMANCE_OPTIONS"));
        var options = new WorkerOptions().workerId(given.get("workerId").asText()).concurrency(given.get("concurrency").asInt())
            .lease(seconds(given, "leaseSeconds")).pollWait(seconds(given, "waitSeconds")).drainGrace(seconds(given, "drainGraceSeconds"));
        if (given.has("token")) options.token(() -> given.get("token").asText());
        var worker = new Worker(System.getenv("PENSTOCK_URL"), options);
        for (var each : given.get("jobTypes")) {
            var type = each.get("type").asText();
            if (each.path("handler").asText().equals("typed"))
                worker.handle(type, Order.class, (job, order) -> Map.of("summary", order.name() + ":" + order.count() + ":" + order.tags().size()));
            else
                worker.handle(type, each.path("concurrency").asInt(0), each.has("timeoutSeconds") ? seconds(each, "timeoutSeconds") : null,
                    each.path("handler").asText().equals("nothing") ? job -> null : Conformance::behave);
        }
        emit(Map.of("event", "ready"));
        worker.runUntilSignal();
    }

    private static Duration seconds(JsonNode given, String name) {
        return Duration.ofMillis((long) (given.get(name).asDouble() * 1000));
    }

    private static Object call(Client client, JsonNode given) {
        var id = text(given, "id");
        Map<String, Object> variables = given.has("variables") ? Json.VALUES.convertValue(given.get("variables"), Json.MAP) : null;
        switch (given.get("call").asText()) {
            case "start":
                var request = new StartRequest(text(given, "definitionId")).variables(variables).businessKey(text(given, "businessKey"))
                    .version(number(given, "definitionVersion")).instanceKey(text(given, "instanceKey"))
                    .keepInstanceKey(given.path("keepInstanceKey").asBoolean()).priority(number(given, "priority"))
                    .flowKey(text(given, "flowKey")).startAt(text(given, "startAt")).delay(text(given, "delay"))
                    .waitSeconds(given.path("waitSeconds").asInt()).idempotencyKey(text(given, "idempotencyKey"))
                    .dedupe(as(given, "dedupe", StartRequest.Dedupe.class)).throttle(as(given, "throttle", StartRequest.Throttle.class))
                    .debounce(as(given, "debounce", StartRequest.Debounce.class));
                return client.start(request).join();
            case "get":
                return client.get(id, given.path("waitSeconds").asInt()).join();
            case "signal":
                return client.signal(id, text(given, "stepId"), variables, given.path("buffer").asBoolean(), text(given, "signalId")).join();
            case "publish":
                return client.publish(new Client.Message(text(given, "name"), text(given, "correlationKey"), variables, text(given, "ttl"),
                    text(given, "messageId"), given.path("toAll").asBoolean())).join();
            case "cancel":
                return client.cancel(id, text(given, "reason")).join();
            case "retry":
                return client.retry(id, text(given, "fromStepId"), text(given, "note")).join();
            case "list":
                var filter = new HashMap<String, String>();
                for (var name : List.of("definitionId", "status", "businessKey", "flowKey"))
                    if (given.has(name)) filter.put(name, text(given, name));
                return client.list(filter, given.path("limit").asInt(20), text(given, "cursor")).join();
            case "listAll":
                var ids = new ArrayList<String>();
                client.forEach(Map.of("definitionId", text(given, "definitionId")), each -> ids.add(each.id()));
                return ids;
            default:
                throw new IllegalArgumentException("unknown call " + given);
        }
    }

    private static String text(JsonNode given, String name) {
        return given.hasNonNull(name) ? given.get(name).asText() : null;
    }

    private static Integer number(JsonNode given, String name) {
        return given.hasNonNull(name) ? given.get(name).asInt() : null;
    }

    private static <T> T as(JsonNode given, String name, Class<T> type) {
        return given.hasNonNull(name) ? Json.MAPPER.convertValue(given.get(name), type) : null;
    }

    private static void runClient() throws Exception {
        var client = new Client(System.getenv("PENSTOCK_URL"));
        var lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (var line = lines.readLine(); line != null; line = lines.readLine()) {
            var answer = new HashMap<String, Object>();
            try {
                answer.put("result", call(client, Json.read(line)));
            } catch (CompletionException | PenstockException error) {
                var told = Rest.errorOf(error);
                answer.putAll(Map.of("error", told.code(), "reason", String.valueOf(told.reason())));
            }
            emit(answer);
        }
    }

    public static void main(String[] arguments) {
        try {
            if (arguments[0].equals("client")) runClient();
            else runWorker();
        } catch (Throwable error) {
            error.printStackTrace();
            System.exit(1);
        }
        System.exit(0);
    }
}
