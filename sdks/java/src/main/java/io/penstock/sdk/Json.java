package io.penstock.sdk;

import com.fasterxml.jackson.annotation.JsonInclude;
import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.core.json.JsonWriteFeature;
import com.fasterxml.jackson.core.type.TypeReference;
import com.fasterxml.jackson.databind.DeserializationFeature;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.MapperFeature;
import com.fasterxml.jackson.databind.json.JsonMapper;
import java.util.Map;

/** JSON in both directions. Whole numbers of any size stay whole. */
final class Json {
    static final JsonMapper MAPPER = JsonMapper.builder()
        .disable(DeserializationFeature.FAIL_ON_UNKNOWN_PROPERTIES)
        .disable(JsonWriteFeature.WRITE_NAN_AS_STRINGS)
        .serializationInclusion(JsonInclude.Include.NON_NULL)
        .build();
    /** For variables, where null is a value. */
    static final JsonMapper VALUES = JsonMapper.builder()
        .disable(DeserializationFeature.FAIL_ON_UNKNOWN_PROPERTIES)
        .enable(DeserializationFeature.FAIL_ON_MISSING_CREATOR_PROPERTIES)
        .enable(DeserializationFeature.FAIL_ON_NULL_FOR_PRIMITIVES)
        .disable(MapperFeature.ALLOW_COERCION_OF_SCALARS)
        .disable(JsonWriteFeature.WRITE_NAN_AS_STRINGS)
        .build();
    static final TypeReference<Map<String, Object>> MAP = new TypeReference<>() {};

    private Json() {}

    /** The value as a tree that has a JSON form. Throws IllegalArgumentException. */
    static JsonNode tree(Object value) {
        JsonNode tree = VALUES.valueToTree(value);
        check(tree, "the value");
        return tree;
    }

    private static void check(JsonNode node, String where) {
        if ((node.isDouble() || node.isFloat()) && !Double.isFinite(node.doubleValue()))
            throw new IllegalArgumentException(where + " is " + node.doubleValue());
        if (node.isObject()) node.fields().forEachRemaining(each -> check(each.getValue(), each.getKey()));
        else if (node.isArray()) node.forEach(each -> check(each, where));
    }

    static String write(Object value) {
        try {
            return VALUES.writeValueAsString(value);
        } catch (JsonProcessingException error) {
            throw new IllegalArgumentException(error);
        }
    }

    static JsonNode read(String text) {
        try {
            return VALUES.readTree(text);
        } catch (JsonProcessingException error) {
            throw new PenstockException("internal-error", "unreadable answer: " + error.getOriginalMessage(), 0, true);
        }
    }
}
