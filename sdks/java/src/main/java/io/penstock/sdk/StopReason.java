package io.penstock.sdk;

/** Why a handler is to stop. */
public enum StopReason {
    /** Another attempt may run. */
    LEASE_LOST("lease-lost"),
    /** The instance ended, or the step was interrupted. */
    CANCELLED("cancelled"),
    /** The worker drains, and the grace is over. */
    STOPPING("stopping"),
    /** The handler's time limit. */
    DEADLINE("deadline");

    private final String text;

    StopReason(String text) {
        this.text = text;
    }

    @Override
    public String toString() {
        return text;
    }
}
