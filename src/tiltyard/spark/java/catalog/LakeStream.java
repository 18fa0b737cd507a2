package tiltyard;

import java.util.Base64;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.Map;

import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;

import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.PhysicalWriteInfo;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.connector.write.streaming.StreamingDataWriterFactory;
import org.apache.spark.sql.connector.write.streaming.StreamingWrite;
import org.apache.spark.sql.execution.datasources.v2.python.PythonWriterCommitMessage;

/**
 * A stream into a table. Its tasks are those that Spark has for sources in Python.
 *
 * Spark plans these tasks in a process for each micro-batch, and commits in another, though the Python driver is there and has the lake open.
 * Here tasks are planned again only when the driver would plan others, and the driver commits.
 */
final class LakeStream implements StreamingWrite {

    private static final int KEPT = 64;
    /** By the names of their plans: Spark makes an object of this class for each micro-batch. */
    private static final Map PLANNED = Collections.synchronizedMap(new LinkedHashMap());

    private final StreamingWrite tasks;
    private final LogicalWriteInfo info;
    private final boolean truncating;

    LakeStream(StreamingWrite tasks, LogicalWriteInfo info, boolean truncating) {
        this.tasks = tasks;
        this.info = info;
        this.truncating = truncating;
    }

    private ObjectNode request(String verb) {
        ObjectNode request = Driver.request(verb).put("query", info.queryId()).put("overwrite", truncating);
        request.put("schema", info.schema().json());
        request.set("options", Driver.object(info.options().asCaseSensitiveMap()));
        return request;
    }

    public StreamingDataWriterFactory createStreamingWriterFactory(PhysicalWriteInfo physical) {
        // Asked first: a table that changes in between is seen at the next micro-batch.
        String plan = Driver.ask(request("plan_stream"), null).asText();
        Object planned = PLANNED.get(plan);
        if (planned == null) {
            planned = tasks.createStreamingWriterFactory(physical);
            synchronized (PLANNED) {
                PLANNED.put(plan, planned);
                if (PLANNED.size() > KEPT) {
                    PLANNED.remove(PLANNED.keySet().iterator().next());
                }
            }
        }
        return (StreamingDataWriterFactory) planned;
    }

    public boolean useCommitCoordinator() {
        return tasks.useCommitCoordinator();
    }

    public void commit(long batch, WriterCommitMessage[] messages) {
        ObjectNode request = request("commit_stream").put("batch", batch);
        ArrayNode sent = request.putArray("messages");
        for (int index = 0; index < messages.length; index++) {
            if (messages[index] != null) {
                sent.add(Base64.getEncoder().encodeToString(((PythonWriterCommitMessage) messages[index]).pickledMessage()));
            }
        }
        Driver.ask(request, null);
    }

    /** By Spark's own process: the driver may be what failed. */
    public void abort(long batch, WriterCommitMessage[] messages) {
        tasks.abort(batch, messages);
    }
}
