package tiltyard;

import java.util.EnumSet;
import java.util.Set;

import com.fasterxml.jackson.databind.JsonNode;

import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.read.LocalScan;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.types.BooleanType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StringType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.apache.spark.unsafe.types.UTF8String;

/** A few rows that the driver has: metadata of a table, or what a procedure tells. */
public final class RowsTable implements SupportsRead, ScanBuilder, LocalScan {

    private final JsonNode rows;
    private final StructType schema;
    private final String name;

    RowsTable(JsonNode found, Identifier of) {
        this.rows = Driver.at(found, "rows");
        this.schema = (StructType) DataType.fromJson(Driver.at(found, "schema").asText());
        this.name = of.toString();
    }

    public String name() {
        return name;
    }

    public StructType schema() {
        return schema;
    }

    public Set capabilities() {
        return EnumSet.of(TableCapability.BATCH_READ);
    }

    public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
        return this;
    }

    public Scan build() {
        return this;
    }

    public StructType readSchema() {
        return schema;
    }

    public InternalRow[] rows() {
        InternalRow[] found = new InternalRow[rows.size()];
        for (int index = 0; index < found.length; index++) {
            Object[] values = new Object[schema.fields().length];
            for (int column = 0; column < values.length; column++) {
                values[column] = value(schema.fields()[column], Driver.at(Driver.at(rows, index), column));
            }
            found[index] = new GenericInternalRow(values);
        }
        return found;
    }

    /** Texts, truths, and whole numbers; moments are microseconds. */
    private static Object value(StructField field, JsonNode given) {
        if (given == null || given.isNull()) {
            return null;
        }
        if (field.dataType() instanceof StringType) {
            return UTF8String.fromString(given.asText());
        }
        if (field.dataType() instanceof BooleanType) {
            return Boolean.valueOf(given.asBoolean());
        }
        return Long.valueOf(given.asLong());
    }
}
