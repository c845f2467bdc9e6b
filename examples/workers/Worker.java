// java Worker.java: does jobs of the type greeting.say. Needs Java 17, and nothing else (in place of Json use a library in earnest).
import java.math.BigDecimal;
import java.net.URI;
import java.net.http.*;
import java.time.Duration;
import java.util.*;

class Worker {
    static final String URL = System.getenv().getOrDefault("PENSTOCK_URL", "http://127.0.0.1:8080");
    static final String TOKEN = System.getenv("PENSTOCK_TOKEN");
    static final String ID = "java-" + ProcessHandle.current().pid();
    static final HttpClient client = HttpClient.newBuilder().connectTimeout(Duration.ofSeconds(10)).build();

    /** What trying again does not repair. */
    static class BadInput extends RuntimeException {
        BadInput(String message) { super(message); }
    }

    /** An answer that is not 2xx. */
    static class Refused extends Exception {
        final int status;
        Refused(int status, String text) {
            super(status + " " + text.substring(0, Math.min(500, text.length())));
            this.status = status;
        }
    }

    static Map<String, Object> say(Map<?, ?> variables) {
        if (!(variables.get("name") instanceof String name)) throw new BadInput("the variable name is missing, or no text");
        return Map.of("greeting", "Hello, " + name);
    }

    static String call(String path, Map<String, Object> body) throws Exception {
        var request = HttpRequest.newBuilder(URI.create(URL + path)).timeout(Duration.ofSeconds(30)) // a poll waits 20
            .header("content-type", "application/json").POST(HttpRequest.BodyPublishers.ofString(Json.write(body)));
        if (TOKEN != null) request.header("authorization", "Bearer " + TOKEN);
        var answer = client.send(request.build(), HttpResponse.BodyHandlers.ofString());
        if (answer.statusCode() / 100 != 2) throw new Refused(answer.statusCode(), answer.body());
        return answer.body();
    }

    static void work(Map<?, ?> job) throws InterruptedException {
        var report = "complete";
        var body = new HashMap<String, Object>(Map.of("workerId", ID, "attempt", job.get("attempt")));
        try {
            body.put("variables", say(job.get("variables") instanceof Map<?, ?> given ? given : Map.of()));
        } catch (Throwable error) {
            System.err.println("job " + job.get("id") + ": " + error);
            report = "fail";
            body.putAll(Map.of("retryable", !(error instanceof BadInput), "errorMessage", error.toString()));
        }
        for (int tries = 1; tries <= 5; tries++) { // twice is once: what got no answer is said again
            try {
                call("/v1/jobs/" + job.get("id") + "/" + report, body);
                return;
            } catch (Exception error) {
                System.err.println("job " + job.get("id") + ": " + error);
                if (error instanceof Refused no && no.status < 500 && no.status != 429) return; // 409: it is another's now
                Thread.sleep(1000);
            }
        }
    }

    public static void main(String[] arguments) throws InterruptedException {
        Map<String, Object> poll = Map.of("workerId", ID, "jobTypes", List.of("greeting.say"),
            "maxJobs", 10, "leaseSeconds", 60, "waitSeconds", 20);
        while (true) {
            try {
                if (!(Json.read(call("/v1/jobs/poll", poll)) instanceof Map<?, ?> polled && polled.get("jobs") instanceof List<?> jobs))
                    throw new IllegalArgumentException("the answer to a poll has no jobs");
                for (var each : jobs)
                    if (each instanceof Map<?, ?> job && job.get("id") instanceof String && job.get("attempt") instanceof Number) work(job);
                    else System.err.println("no job, but " + each);
            } catch (Exception | StackOverflowError error) { // the engine is away, or refuses us: ask again, but not at once
                System.err.println(error);
                Thread.sleep(1000);
            }
        }
    }

    /** JSON as maps, lists, texts, numbers, booleans and null. */
    static class Json {
        final String text;
        int at = 0;

        Json(String text) { this.text = text; }

        static Object read(String text) {
            var json = new Json(text);
            var value = json.value();
            if (!text.substring(json.at).isBlank()) throw json.no();
            return value;
        }

        IllegalArgumentException no() { return new IllegalArgumentException("no JSON at " + at + ": " + text.substring(0, Math.min(200, text.length()))); }

        char next() { // the next character that is no space; it is not taken
            while (at < text.length() && " \t\r\n".indexOf(text.charAt(at)) >= 0) at++;
            if (at == text.length()) throw no();
            return text.charAt(at);
        }

        boolean took(char wanted) { return next() == wanted && at++ >= 0; }

        void need(char wanted) { if (!took(wanted)) throw no(); }

        Object value() {
            if (took('{')) {
                var map = new LinkedHashMap<String, Object>();
                if (took('}')) return map;
                do {
                    need('"');
                    var key = string();
                    need(':');
                    map.put(key, value());
                } while (took(','));
                need('}');
                return map;
            }
            if (took('[')) {
                var list = new ArrayList<Object>();
                if (took(']')) return list;
                do list.add(value()); while (took(','));
                need(']');
                return list;
            }
            if (took('"')) return string();
            int begin = at;
            while (at < text.length() && ",]} \t\r\n".indexOf(text.charAt(at)) < 0) at++;
            return switch (text.substring(begin, at)) {
                case "true" -> true;
                case "false" -> false;
                case "null" -> null;
                default -> new BigDecimal(text.substring(begin, at));
            };
        }

        String string() {
            var made = new StringBuilder();
            while (at < text.length() && text.charAt(at) != '"') {
                char letter = text.charAt(at++);
                if (letter != '\\') made.append(letter);
                else if (text.charAt(at++) == 'u') made.append((char) Integer.parseInt(text.substring(at, at += 4), 16));
                else made.append("\"\\/\b\f\n\r\t".charAt("\"\\/bfnrt".indexOf(text.charAt(at - 1))));
            }
            need('"');
            return made.toString();
        }

        static String write(Object value) {
            if (value instanceof Map<?, ?> map)
                return "{" + String.join(",", map.entrySet().stream().map(each -> write(each.getKey()) + ":" + write(each.getValue())).toList()) + "}";
            if (value instanceof List<?> list) return "[" + String.join(",", list.stream().map(Json::write).toList()) + "]";
            if (!(value instanceof String text)) return String.valueOf(value);
            var made = new StringBuilder("\"");
            for (char letter : text.toCharArray())
                if (letter == '"' || letter == '\\') made.append('\\').append(letter);
                else if (letter < ' ') made.append(String.format("\\u%04x", (int) letter));
                else made.append(letter);
            return made.append('"').toString();
        }
    }
}
