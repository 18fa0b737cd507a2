package tiltyard;

import java.util.Collections;
import java.util.Iterator;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;

import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.procedures.BoundProcedure;
import org.apache.spark.sql.connector.catalog.procedures.ProcedureParameter;
import org.apache.spark.sql.connector.catalog.procedures.UnboundProcedure;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;

/** A verb of a lake or a table, for CALL. */
public final class LakeProcedure implements UnboundProcedure, BoundProcedure {

    private final LakeCatalog catalog;
    private final Identifier identifier;
    private final JsonNode known;

    LakeProcedure(LakeCatalog catalog, Identifier identifier, JsonNode known) {
        this.catalog = catalog;
        this.identifier = identifier;
        this.known = known;
    }

    public String name() {
        return identifier.name();
    }

    public String description() {
        return Driver.at(known, "description").asText();
    }

    public BoundProcedure bind(StructType given) {
        return this;
    }

    public boolean isDeterministic() {
        return false;
    }

    public ProcedureParameter[] parameters() {
        JsonNode told = Driver.at(known, "parameters");
        ProcedureParameter[] found = new ProcedureParameter[told.size()];
        for (int index = 0; index < found.length; index++) {
            JsonNode each = Driver.at(told, index);
            ProcedureParameter.Builder builder = ProcedureParameter.in(Driver.at(each, "name").asText(), type(index));
            found[index] = Driver.at(each, "required").asBoolean() ? builder.build() : builder.defaultValue("NULL").build();
        }
        return found;
    }

    private DataType type(int index) {
        return DataType.fromJson(Driver.at(Driver.at(Driver.at(known, "parameters"), index), "type").asText());
    }

    public Iterator call(InternalRow given) {
        ObjectNode request = catalog.request("call", identifier);
        ArrayNode values = request.putArray("values");
        for (int index = 0; index < given.numFields(); index++) {
            if (given.isNullAt(index)) {
                values.addNull();
            } else {
                values.add(given.get(index, type(index)).toString());
            }
        }
        JsonNode found = Driver.ask(request, null);
        return Collections.singletonList(new RowsTable(found, identifier)).iterator();
    }
}
