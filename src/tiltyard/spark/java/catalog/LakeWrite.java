package tiltyard;

import java.util.HashMap;
import java.util.Iterator;
import java.util.Map;

import com.fasterxml.jackson.databind.JsonNode;

import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.connector.write.BatchWrite;
import org.apache.spark.sql.connector.write.DeltaBatchWrite;
import org.apache.spark.sql.connector.write.DeltaWrite;
import org.apache.spark.sql.connector.write.DeltaWriteBuilder;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.SupportsDynamicOverwrite;
import org.apache.spark.sql.connector.write.SupportsOverwriteV2;
import org.apache.spark.sql.connector.write.Write;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.connector.write.streaming.StreamingWrite;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.execution.datasources.v2.python.PythonWriteBuilder;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** A write to a table. A batch is planned by {@code LakeStrategy} and done by Python; a stream by {@code LakeStream}. */
public class LakeWrite implements Write {

    private final LakeTable table;
    private final LogicalWriteInfo info;
    private final boolean truncating;

    LakeWrite(LakeTable table, LogicalWriteInfo info, boolean truncating) {
        this.table = table;
        this.info = info;
        this.truncating = truncating;
    }

    /** Options that say which table is meant, with those that were given. */
    static CaseInsensitiveStringMap withTable(LakeTable table, CaseInsensitiveStringMap given) {
        Map all = new HashMap(given.asCaseSensitiveMap());
        for (Iterator each = Driver.at(table.known, "target").fields(); each.hasNext();) {
            Map.Entry entry = (Map.Entry) each.next();
            all.put(entry.getKey(), ((JsonNode) entry.getValue()).asText());
        }
        return new CaseInsensitiveStringMap(all);
    }

    static RuntimeException unplanned() {
        return new UnsupportedOperationException(
            "[TILTYARD.UNSUPPORTED_FEATURE] This session does not plan writes to Tiltyard tables. Call ty.spark.enable(spark) first.");
    }

    public BatchWrite toBatch() {
        throw unplanned();
    }

    public StreamingWrite toStreaming() {
        PythonDataSourceV2 source = new PythonDataSourceV2();
        source.setShortName(LakeScan.SOURCE);
        LogicalWriteInfo told = new Info(table, info);
        PythonWriteBuilder builder = new PythonWriteBuilder(source, LakeScan.SOURCE, told);
        return new LakeStream((truncating ? builder.truncate() : builder).build().toStreaming(), told, truncating);
    }

    static final class Builder implements SupportsOverwriteV2, SupportsDynamicOverwrite {
        private final LakeTable table;
        private final LogicalWriteInfo info;
        private boolean truncating = false;

        Builder(LakeTable table, LogicalWriteInfo info) {
            this.table = table;
            this.info = info;
        }

        public boolean canOverwrite(Predicate[] predicates) {
            return true;
        }

        public WriteBuilder overwrite(Predicate[] predicates) {
            return this;
        }

        public WriteBuilder overwriteDynamicPartitions() {
            return this;
        }

        public WriteBuilder truncate() {
            truncating = true;
            return this;
        }

        public Write build() {
            return new LakeWrite(table, info, truncating);
        }
    }

    static final class DeltaBuilder implements DeltaWriteBuilder {
        public DeltaWrite build() {
            return new Delta();
        }
    }

    static final class Delta implements DeltaWrite {
        public DeltaBatchWrite toBatch() {
            throw unplanned();
        }
    }

    static final class Info implements LogicalWriteInfo {
        private final LakeTable table;
        private final LogicalWriteInfo given;

        Info(LakeTable table, LogicalWriteInfo given) {
            this.table = table;
            this.given = given;
        }

        public CaseInsensitiveStringMap options() {
            return withTable(table, given.options());
        }

        public String queryId() {
            return given.queryId();
        }

        public StructType schema() {
            return given.schema();
        }
    }
}
