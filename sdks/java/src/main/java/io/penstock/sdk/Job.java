package io.penstock.sdk;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.Map;

/** What a handler works on. */
public final class Job {
    private final Data data;
    private final HeldJob held;

    /** A job as it comes from the engine. */
    record Data(
        String id, String jobType, String instanceId, String stepId, int attempt, int retriesRemaining,
        String definitionId, int definitionVersion, String businessKey, String idempotencyKey, JsonNode variables,
        JsonNode checkpoint) {}

    Job(Data data, HeldJob held) {
        this.data = data;
        this.held = held;
    }

    public String id() {
        return data.id();
    }

    public String type() {
        return data.jobType();
    }

    public String instanceId() {
        return data.instanceId();
    }

    public String stepId() {
        return data.stepId();
    }

    public int attempt() {
        return data.attempt();
    }

    public int retriesRemaining() {
        return data.retriesRemaining();
    }

    public String definitionId() {
        return data.definitionId();
    }

    public int definitionVersion() {
        return data.definitionVersion();
    }

    /** Null where there is none. */
    public String businessKey() {
        return data.businessKey();
    }

    /** Give it to the systems that you call: the same in all attempts, also after a retry of the instance. */
    public String idempotencyKey() {
        return data.idempotencyKey();
    }

    /** All variables of the instance. */
    public Map<String, Object> variables() {
        return data.variables() == null ? Map.of() : Json.VALUES.convertValue(data.variables(), Json.MAP);
    }

    /** The variables as a type of yours. Throws NonRetryableException when they do not fit. */
    public <V> V variables(Class<V> type) throws NonRetryableException {
        try {
            return Json.VALUES.treeToValue(data.variables(), type);
        } catch (Exception error) {
            throw new NonRetryableException("the variables do not fit: " + error.getMessage());
        }
    }

    /** What an earlier attempt stored; null when nothing. */
    public JsonNode checkpoint() {
        return data.checkpoint();
    }

    /** Why the handler is to stop; null while it is not. */
    public StopReason stopReason() {
        return held.stopReason();
    }

    /** Stores a checkpoint for the next attempt, shows progress; null leaves either as it is. Waits through outages. */
    public void report(Object checkpoint, Object progress) throws InterruptedException {
        held.report(checkpoint, progress);
    }
}
