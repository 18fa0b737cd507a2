package tiltyard;

import java.util.HashMap;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalLong;

import com.fasterxml.jackson.databind.JsonNode;

import org.apache.spark.sql.connector.expressions.FieldReference$;
import org.apache.spark.sql.connector.read.colstats.ColumnStatistics;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.types.StructType;

/**
 * What is known of one column without reading it, for Spark's cost-based choices.
 *
 * Bounds are numbers, as Spark's estimates compare them; text has none.
 */
public final class ColumnFacts implements ColumnStatistics {

    private final JsonNode told;

    ColumnFacts(JsonNode told) {
        this.told = told;
    }

    /** All columns of a scan, by references; nothing where the session does not plan by costs, since to look it up takes a moment. */
    static Map all(String facts, StructType schema) {
        Map found = new HashMap();
        if (!SQLConf.get().cboEnabled()) {
            return found;
        }
        JsonNode told = Driver.ask(Driver.request("column_statistics").put("facts", facts), null);
        String[] names = schema.fieldNames();
        for (int index = 0; index < names.length; index++) {
            JsonNode known = told.get(names[index]);
            if (known != null) {
                found.put(FieldReference$.MODULE$.column(names[index]), new ColumnFacts(known));
            }
        }
        return found;
    }

    public OptionalLong distinctCount() {
        return count("distinct");
    }

    public OptionalLong nullCount() {
        return count("nulls");
    }

    public Optional min() {
        return bound("least");
    }

    public Optional max() {
        return bound("greatest");
    }

    private OptionalLong count(String name) {
        JsonNode value = told.get(name);
        return value == null || value.isNull() ? OptionalLong.empty() : OptionalLong.of(value.asLong());
    }

    private Optional bound(String name) {
        JsonNode value = told.get(name);
        if (value == null || value.isNull()) {
            return Optional.empty();
        }
        return value.isIntegralNumber() ? Optional.of(Long.valueOf(value.asLong())) : Optional.of(Double.valueOf(value.asDouble()));
    }
}
