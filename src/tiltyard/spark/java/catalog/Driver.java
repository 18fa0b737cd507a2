package tiltyard;

import java.io.IOException;
import java.util.Map;
import java.util.function.BiFunction;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;

import py4j.Py4JException;

/** The Python side of the driver: what is asked of it, as JSON, and what it answers. */
public final class Driver {

    static final ObjectMapper JSON = new ObjectMapper();

    private static volatile BiFunction answers;

    private Driver() {
    }

    /** Who answers from now on; null for nobody. */
    public static void set(BiFunction given) {
        answers = given;
    }

    public static boolean isThere() {
        return answers != null;
    }

    static ObjectNode request(String verb) {
        return JSON.createObjectNode().put("do", verb);
    }

    static ObjectNode object(Map values) {
        return (ObjectNode) JSON.valueToTree(values);
    }

    /** The answer; what Python refuses is thrown, with its words first. */
    static JsonNode ask(ObjectNode request, Object subject) {
        JsonNode answer = answer(request, subject);
        if (answer.has("error")) {
            throw refusal(answer);
        }
        return at(answer, "ok");
    }

    /** The answer as it is: either of "ok" and "error" is in it. */
    static JsonNode answer(ObjectNode request, Object subject) {
        if (answers == null) {
            OwnPython.start();
        }
        BiFunction asked = answers;
        PromptCall.prepare();
        try {
            return JSON.readTree((String) asked.apply(request.toString(), subject));
        } catch (IOException failure) {
            throw new IllegalStateException("The driver's answer is not JSON.", failure);
        } catch (Py4JException failure) {
            String text = failure.getMessage() == null ? "" : failure.getMessage().trim();
            if (text.indexOf("Traceback") >= 0) { // of something that is nobody's mistake but ours
                throw new IllegalStateException(lastOutside(text), failure);
            }
            throw new IllegalStateException(
                "The Python process that served the catalog went away. Call ty.spark.enable(spark); if this statement writes, look at"
                    + " the table's history first: whether it was committed is not known.", failure);
        }
    }

    /** The last line that is not of a stack: it says what went wrong. */
    private static String lastOutside(String text) {
        String[] lines = text.split("\n");
        for (int index = lines.length - 1; index > 0; index--) {
            if (lines[index].length() > 0 && !Character.isWhitespace(lines[index].charAt(0))) {
                return lines[index];
            }
        }
        return lines[0];
    }

    static RuntimeException refusal(JsonNode answer) {
        String text = at(answer, "message").asText();
        if ("UNSUPPORTED_FEATURE".equals(at(answer, "error").asText())) {
            return new UnsupportedOperationException(text);
        }
        return new IllegalArgumentException(text);
    }

    static JsonNode at(JsonNode node, String name) {
        return (JsonNode) node.get(name);
    }

    static JsonNode at(JsonNode node, int index) {
        return (JsonNode) node.get(index);
    }

    static boolean isMissing(JsonNode answer) {
        return answer.has("error") && "NOT_FOUND".equals(at(answer, "error").asText());
    }

    static boolean isTaken(JsonNode answer) {
        return answer.has("error") && "ALREADY_EXISTS".equals(at(answer, "error").asText());
    }
}
