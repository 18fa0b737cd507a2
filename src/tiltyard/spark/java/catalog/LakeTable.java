package tiltyard;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.EnumSet;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Set;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;

import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.MetadataColumn;
import org.apache.spark.sql.connector.catalog.SupportsMetadataColumns;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.SupportsRowLevelOperations;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.catalog.TruncatableTable;
import org.apache.spark.sql.connector.expressions.Expressions;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.write.DeltaWriteBuilder;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.RowLevelOperation;
import org.apache.spark.sql.connector.write.RowLevelOperationBuilder;
import org.apache.spark.sql.connector.write.RowLevelOperationInfo;
import org.apache.spark.sql.connector.write.SupportsDelta;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** A table of a lake at the version it had when it was resolved. */
public final class LakeTable
        implements SupportsRead, SupportsWrite, SupportsRowLevelOperations, SupportsMetadataColumns, TruncatableTable {

    static final String ADDRESS = "_rowaddr";
    static final String ID = "_rowid";
    private static final List MOMENTS = Arrays.asList(new String[] {"versionasof", "timestampasof"});

    final LakeCatalog catalog;
    final Identifier identifier;
    final JsonNode known;
    private final StructType schema;

    LakeTable(LakeCatalog catalog, Identifier identifier, JsonNode known) {
        this.catalog = catalog;
        this.identifier = identifier;
        this.known = known;
        this.schema = (StructType) DataType.fromJson(Driver.at(known, "schema").asText());
    }

    public String name() {
        return catalog.name() + "." + String.join(".", identifier.namespace()) + (identifier.namespace().length > 0 ? "." : "")
            + identifier.name();
    }

    /** The same table at the same version: what Spark cached of the one it has of the other. */
    public boolean equals(Object other) {
        return other instanceof LakeTable && name().equals(((LakeTable) other).name()) && address().equals(((LakeTable) other).address());
    }

    public int hashCode() {
        return address().hashCode();
    }

    private String address() {
        return Driver.at(Driver.at(known, "facts"), "address").asText();
    }

    public StructType schema() {
        return schema;
    }

    public Map properties() {
        Map found = new HashMap();
        for (Iterator all = Driver.at(known, "properties").fields(); all.hasNext();) {
            Map.Entry entry = (Map.Entry) all.next();
            found.put(entry.getKey(), ((JsonNode) entry.getValue()).asText());
        }
        return found;
    }

    /** Columns by which parts can be overwritten; how rows lie is the table's own affair. */
    public Transform[] partitioning() {
        JsonNode told = Driver.at(known, "partitioned");
        Transform[] found = new Transform[told.size()];
        for (int index = 0; index < found.length; index++) {
            found[index] = Expressions.identity(Driver.at(told, index).asText());
        }
        return found;
    }

    public Set capabilities() {
        Set found = EnumSet.of(TableCapability.BATCH_READ);
        if (Driver.at(known, "latest").asBoolean()) {
            found.add(TableCapability.MICRO_BATCH_READ);
            found.add(TableCapability.BATCH_WRITE);
            found.add(TableCapability.STREAMING_WRITE);
            found.add(TableCapability.TRUNCATE);
            found.add(TableCapability.OVERWRITE_BY_FILTER);
            found.add(TableCapability.OVERWRITE_DYNAMIC);
            found.add(TableCapability.AUTOMATIC_SCHEMA_EVOLUTION);
        }
        return found;
    }

    /** The column that tells the shard of a row, since rows of two shards may have one address; null in a table that is not sharded. */
    private String shard() {
        return Driver.at(known, "shard").isNull() ? null : Driver.at(known, "shard").asText();
    }

    public MetadataColumn[] metadataColumns() {
        List found = new ArrayList();
        found.add(new Hidden(ADDRESS, "Where the row is in this version."));
        found.add(new Hidden(ID, "The row's id."));
        if (shard() != null) {
            found.add(new Hidden(shard(), "The shard that the row is in."));
        }
        return (MetadataColumn[]) found.toArray(new MetadataColumn[0]);
    }

    /** What a scan reads, as JSON: the table at its version, with the options of the query. */
    public String facts(CaseInsensitiveStringMap options) {
        ObjectNode facts = ((ObjectNode) Driver.at(known, "facts")).deepCopy();
        for (Iterator all = options.asCaseSensitiveMap().entrySet().iterator(); all.hasNext();) {
            Map.Entry entry = (Map.Entry) all.next();
            if (!Driver.at(known, "latest").asBoolean() && MOMENTS.contains(((String) entry.getKey()).toLowerCase())) {
                continue; // this table is the one of that moment
            }
            ((ObjectNode) Driver.at(facts, "options")).put((String) entry.getKey(), (String) entry.getValue());
        }
        return facts.toString();
    }

    /** Tells this table, as one statement resolved it, from all others: which version it is read at may be decided anew. */
    public String mark() {
        return Driver.at(Driver.at(known, "facts"), "id").asText();
    }

    public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
        if (!options.isEmpty()) {
            checkOptions(options);
        }
        return new LakeScan.Builder(this, options, false);
    }

    /** An option that is not known is refused here: a count may come from metadata, without a scan that would look at it. */
    private void checkOptions(CaseInsensitiveStringMap options) {
        Set names = new HashSet();
        for (Iterator all = Driver.at(known, isStream() ? "streamable" : "readable").elements(); all.hasNext();) {
            names.add(((JsonNode) all.next()).asText());
        }
        for (Iterator all = options.keySet().iterator(); all.hasNext();) {
            String name = (String) all.next();
            if (!names.contains(name) && !name.startsWith("storage.") && !name.startsWith("__")) {
                Driver.ask(Driver.request("refuse_option").put("name", name).put("stream", isStream()), null);
            }
        }
    }

    private static boolean isStream() {
        StackTraceElement[] calls = Thread.currentThread().getStackTrace();
        for (int index = 0; index < calls.length; index++) {
            if (calls[index].getClassName().indexOf(".streaming.") >= 0) {
                return true;
            }
        }
        return false;
    }

    public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
        return new LakeWrite.Builder(this, info);
    }

    public boolean truncateTable() {
        return Driver.ask(catalog.request("truncate", identifier), null).asBoolean();
    }

    public RowLevelOperationBuilder newRowLevelOperationBuilder(RowLevelOperationInfo info) {
        return new Operation(this, info);
    }

    /** DELETE, UPDATE or MERGE: Spark finds the rows by their addresses, Python writes and commits. */
    public static final class Operation implements RowLevelOperationBuilder, SupportsDelta {
        final LakeTable table;
        final RowLevelOperationInfo info;

        Operation(LakeTable table, RowLevelOperationInfo info) {
            this.table = table;
            this.info = info;
        }

        public RowLevelOperation build() {
            return this;
        }

        public RowLevelOperation.Command command() {
            return info.command();
        }

        public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
            return new LakeScan.Builder(table, options, true);
        }

        public DeltaWriteBuilder newWriteBuilder(LogicalWriteInfo given) {
            return new LakeWrite.DeltaBuilder();
        }

        public NamedReference[] rowId() {
            List found = new ArrayList();
            found.add(Expressions.column(ADDRESS));
            if (Driver.at(table.known, "stable").asBoolean()) {
                found.add(Expressions.column(ID));
            }
            if (table.shard() != null) {
                found.add(Expressions.column(table.shard()));
            }
            return (NamedReference[]) found.toArray(new NamedReference[0]);
        }
    }

    static final class Hidden implements MetadataColumn {
        private final String name;
        private final String comment;

        Hidden(String name, String comment) {
            this.name = name;
            this.comment = comment;
        }

        public String name() {
            return name;
        }

        public DataType dataType() {
            return DataTypes.LongType;
        }

        public boolean isNullable() {
            return false;
        }

        public String comment() {
            return comment;
        }
    }
}
