package tiltyard;

import java.io.ByteArrayInputStream;
import java.io.DataInputStream;
import java.util.Base64;
import java.util.OptionalLong;

import com.fasterxml.jackson.databind.node.ObjectNode;

import org.apache.spark.sql.connector.expressions.FieldReference$;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.Statistics;
import org.apache.spark.sql.connector.read.SupportsPushDownRequiredColumns;
import org.apache.spark.sql.connector.read.SupportsReportStatistics;
import org.apache.spark.sql.connector.read.SupportsRuntimeV2Filtering;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceReadInfo;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.execution.datasources.v2.python.PythonScan;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * Some columns of a table. With the optimizer's rule in the session, a narrower scan takes its place before it is executed.
 *
 * This one reads what a statement changes. Spark would offer it keys of whole groups of rows that can be rewritten, which ours are not.
 */
public class LakeScan implements SupportsReportStatistics {

    static final String SOURCE = "tiltyard";

    private final LakeTable table;
    private final CaseInsensitiveStringMap options;
    private final String facts;
    final StructType schema;

    LakeScan(LakeTable table, CaseInsensitiveStringMap options, String facts, StructType schema) {
        this.table = table;
        this.options = options;
        this.facts = facts;
        this.schema = schema;
    }

    /** What is read, as the optimizer's rule passes it on to Python. */
    public String facts() {
        return facts;
    }

    public StructType readSchema() {
        return schema;
    }

    public String description() {
        return "tiltyard " + table.name() + " version " + Driver.at(table.known, "version").asText();
    }

    public Statistics estimateStatistics() {
        long bytes = Driver.at(table.known, "bytes").asLong();
        return new Size(bytes, Driver.at(table.known, "count").asLong(), ColumnFacts.all(facts, schema));
    }

    public Batch toBatch() {
        ObjectNode request = Driver.request("plan_scan").put("facts", facts).put("schema", schema.json());
        byte[] bytes = Base64.getDecoder().decode(Driver.ask(request, null).asText());
        PythonDataSourceV2 source = new PythonDataSourceV2();
        source.setShortName(SOURCE);
        source.setReadInfo(PythonDataSourceReadInfo.receive(new DataInputStream(new ByteArrayInputStream(bytes))));
        return new PythonScan(
            source, SOURCE, schema, CaseInsensitiveStringMap.empty(), new org.apache.spark.sql.sources.Filter[0]).toBatch();
    }

    public MicroBatchStream toMicroBatchStream(String checkpoint) {
        CaseInsensitiveStringMap all = LakeWrite.withTable(table, options);
        PythonDataSourceV2 source = new PythonDataSourceV2();
        source.setShortName(SOURCE);
        source.inferSchema(all);
        return new PythonScan(source, SOURCE, schema, all, new org.apache.spark.sql.sources.Filter[0]).toMicroBatchStream(checkpoint);
    }

    static final class Builder implements SupportsPushDownRequiredColumns {
        private final LakeTable table;
        private final CaseInsensitiveStringMap options;
        private final boolean changed;
        private StructType schema;

        /** {@code changed} where the rows are read to be changed. */
        Builder(LakeTable table, CaseInsensitiveStringMap options, boolean changed) {
            this.table = table;
            this.options = options;
            this.changed = changed;
            this.schema = table.schema();
        }

        public void pruneColumns(StructType required) {
            schema = required;
        }

        public Scan build() {
            String facts = table.facts(options);
            return changed ? new LakeScan(table, options, facts, schema) : new OfQuery(table, options, facts, schema);
        }
    }

    /** What a query reads: it may be told the keys that a join can match. */
    public static final class OfQuery extends LakeScan implements SupportsRuntimeV2Filtering {

        OfQuery(LakeTable table, CaseInsensitiveStringMap options, String facts, StructType schema) {
            super(table, options, facts, schema);
        }

        /** All columns, so that Spark offers keys of joins; the narrower scan that takes this one's place uses them. */
        public NamedReference[] filterAttributes() {
            java.util.Map all = new java.util.LinkedHashMap();
            String[] names = schema.fieldNames();
            for (int index = 0; index < names.length; index++) {
                // Spark looks them up without regard to case, and fails where there are two.
                String key = names[index].toLowerCase(java.util.Locale.ROOT);
                all.put(key, all.containsKey(key) ? null : FieldReference$.MODULE$.column(names[index]));
            }
            while (all.values().remove(null)) {
            }
            return (NamedReference[]) all.values().toArray(new NamedReference[0]);
        }

        /** Nothing: without the rule all rows are read, and the join leaves out what it always would. */
        public void filter(Predicate[] predicates) {
        }
    }

    static final class Size implements Statistics {
        private final long bytes;
        private final long rows;
        private final java.util.Map columns;

        Size(long bytes, long rows, java.util.Map columns) {
            this.bytes = bytes;
            this.rows = rows;
            this.columns = columns;
        }

        public java.util.Map columnStats() {
            return columns;
        }

        public OptionalLong sizeInBytes() {
            return OptionalLong.of(bytes);
        }

        public OptionalLong numRows() {
            return OptionalLong.of(rows);
        }
    }
}
