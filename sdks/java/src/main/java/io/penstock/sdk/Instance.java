package io.penstock.sdk;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.List;
import java.util.Map;

/** A workflow instance. Times are RFC 3339; what it does not have is null. */
public record Instance(
    String id, String definitionId, int definitionVersion, String status, List<String> currentStepIds,
    Map<String, Object> variables, String startedAt, String completedAt, String startAt, String failureReason,
    String failureCode, String businessKey, String instanceKey, String parentInstanceId, String flowKey,
    Integer priority, Map<String, Object> progress, JsonNode result, boolean deduplicated) {

    /** Whether nothing more happens to it by itself. */
    public boolean ended() {
        return List.of("COMPLETED", "FAILED", "CANCELLED").contains(status);
    }

    /** A part of a list; next is the cursor of what comes after, null at the end. */
    public record Page(List<Instance> items, String next) {}
}
