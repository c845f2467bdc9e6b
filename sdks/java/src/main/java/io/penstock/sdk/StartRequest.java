package io.penstock.sdk;

import com.fasterxml.jackson.annotation.JsonAutoDetect;
import com.fasterxml.jackson.annotation.JsonInclude;
import com.fasterxml.jackson.annotation.JsonProperty;
import com.fasterxml.jackson.annotation.JsonIgnore;

/** A start with all that it may ask for. Durations are ISO 8601. */
@JsonAutoDetect(fieldVisibility = JsonAutoDetect.Visibility.ANY)
@JsonInclude(JsonInclude.Include.NON_NULL)
public final class StartRequest {
    /** Within the window of the first start with the key its instance is the answer. */
    public record Dedupe(String key, String window) {}

    /** So many starts with the key in each period; onExcess is REJECT (the default) or DELAY. Null is left out. */
    @JsonInclude(JsonInclude.Include.NON_NULL)
    public record Throttle(String key, int limit, String period, Integer burst, String onExcess) {}

    /** Of starts with the key that come close together one begins; keep is LAST (the default) or MERGE. */
    @JsonInclude(JsonInclude.Include.NON_NULL)
    public record Debounce(String key, @JsonProperty("wait") String waitTime, String maxWait, String keep) {}

    private final String definitionId;
    private Integer definitionVersion;
    private Object variables;
    private String businessKey;
    private String instanceKey;
    private Boolean keepInstanceKey;
    private Integer priority;
    private String flowKey;
    private String startAt;
    private String delay;
    private Dedupe dedupe;
    private Throttle throttle;
    private Debounce debounce;
    @JsonProperty Integer waitSeconds;
    @JsonIgnore String idempotencyKey;

    public StartRequest(String definitionId) {
        this.definitionId = definitionId;
    }

    public StartRequest version(Integer version) {
        definitionVersion = version;
        return this;
    }

    /** Anything with the form of a JSON object. */
    public StartRequest variables(Object given) {
        variables = given == null ? null : Json.tree(given);
        return this;
    }

    public StartRequest businessKey(String key) {
        businessKey = key;
        return this;
    }

    /** Unique among the open instances of the definition: a second start returns the first. */
    public StartRequest instanceKey(String key) {
        instanceKey = key;
        return this;
    }

    /** The instance key stays taken after the end, as long as the instance is kept. */
    public StartRequest keepInstanceKey(boolean keep) {
        keepInstanceKey = keep ? true : null;
        return this;
    }

    /** 0 to 9, lower ones first. */
    public StartRequest priority(Integer of) {
        priority = of;
        return this;
    }

    public StartRequest flowKey(String key) {
        flowKey = key;
        return this;
    }

    /** RFC 3339: it is there at once and begins then. */
    public StartRequest startAt(String time) {
        startAt = time;
        return this;
    }

    public StartRequest delay(String duration) {
        delay = duration;
        return this;
    }

    public StartRequest dedupe(Dedupe rule) {
        dedupe = rule;
        return this;
    }

    public StartRequest throttle(Throttle rule) {
        throttle = rule;
        return this;
    }

    public StartRequest debounce(Debounce rule) {
        debounce = rule;
        return this;
    }

    /** The answer comes when it has ended, or after so long (60 at most). */
    public StartRequest waitSeconds(int seconds) {
        waitSeconds = seconds > 0 ? seconds : null;
        return this;
    }

    /** Makes the start happen once, however often the call is repeated; the client makes one where there is none. */
    public StartRequest idempotencyKey(String key) {
        idempotencyKey = key;
        return this;
    }
}
