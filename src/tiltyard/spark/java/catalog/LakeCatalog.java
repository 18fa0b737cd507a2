package tiltyard;

import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.util.HashMap;
import java.util.Map;
import java.util.WeakHashMap;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;

import org.apache.spark.sql.catalyst.QueryPlanningTracker;
import org.apache.spark.sql.catalyst.analysis.NamespaceAlreadyExistsException;
import org.apache.spark.sql.catalyst.analysis.NoSuchNamespaceException;
import org.apache.spark.sql.catalyst.analysis.NoSuchTableException;
import org.apache.spark.sql.catalyst.analysis.TableAlreadyExistsException;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.connector.catalog.CatalogV2Util;
import org.apache.spark.sql.connector.catalog.Column;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.NamespaceChange;
import org.apache.spark.sql.connector.catalog.ProcedureCatalog;
import org.apache.spark.sql.connector.catalog.SupportsNamespaces;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCatalog;
import org.apache.spark.sql.connector.catalog.TableChange;
import org.apache.spark.sql.connector.catalog.TableInfo;
import org.apache.spark.sql.connector.catalog.procedures.UnboundProcedure;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

import scala.Option;

/** A lake as a catalog of Spark. It knows no table itself: whatever is asked, Python answers. */
public class LakeCatalog implements TableCatalog, SupportsNamespaces, ProcedureCatalog {

    private static final Map QUERIES = new WeakHashMap();
    private static long queries = 0;

    private String name;
    private volatile Map options = new HashMap();

    public void initialize(String name, CaseInsensitiveStringMap options) {
        this.name = name;
        this.options = new HashMap(options.asCaseSensitiveMap());
        Option session = SparkSession.getActiveSession();
        if (session.isDefined()) {
            OwnPython.prepare((SparkSession) session.get());
        }
    }

    /** Makes it the catalog of another lake; what was resolved before stays with the old one. */
    public void pointAt(Map options) {
        this.options = new HashMap(options);
    }

    /** What says which lake it is. */
    public Map options() {
        return options;
    }

    public String name() {
        return name;
    }

    public String[] defaultNamespace() {
        return new String[0];
    }

    ObjectNode request(String verb, String[] namespace, String table) {
        ObjectNode request = Driver.request(verb);
        request.put("catalog", name);
        request.set("options", Driver.object(options));
        ArrayNode parts = request.putArray("name");
        for (int index = 0; index < namespace.length; index++) {
            parts.add(namespace[index]);
        }
        if (table != null) {
            parts.add(table);
        }
        return request;
    }

    ObjectNode request(String verb, Identifier of) {
        return request(verb, of.namespace(), of.name());
    }

    // ---- tables ----

    public Identifier[] listTables(String[] namespace) throws NoSuchNamespaceException {
        JsonNode answer = Driver.answer(request("list_tables", namespace, null), null);
        if (Driver.isMissing(answer)) {
            throw new NoSuchNamespaceException(namespace);
        }
        JsonNode found = done(answer);
        Identifier[] tables = new Identifier[found.size()];
        for (int index = 0; index < tables.length; index++) {
            tables[index] = Identifier.of(namespace, Driver.at(found, index).asText());
        }
        return tables;
    }

    public Table loadTable(Identifier of) throws NoSuchTableException {
        return loaded(request("load", of), of);
    }

    public Table loadTable(Identifier of, String version) throws NoSuchTableException {
        return loaded(request("load", of).put("version", version), of);
    }

    public Table loadTable(Identifier of, long timestamp) throws NoSuchTableException {
        return loaded(request("load", of).put("timestamp", timestamp), of);
    }

    private Table loaded(ObjectNode request, Identifier of) throws NoSuchTableException {
        JsonNode answer = Driver.answer(request.put("query", query()), null);
        if (Driver.isMissing(answer)) {
            throw new NoSuchTableException(of);
        }
        return table(done(answer), of);
    }

    private Table table(JsonNode found, Identifier of) {
        return found.has("rows") ? (Table) new RowsTable(found, of) : new LakeTable(this, of, found);
    }

    private static JsonNode done(JsonNode answer) {
        if (answer.has("error")) {
            throw Driver.refusal(answer);
        }
        return Driver.at(answer, "ok");
    }

    /** The same number for all tables that one query resolves, so that they are of one snapshot. */
    private static long query() {
        Option tracker = QueryPlanningTracker.get();
        synchronized (QUERIES) {
            if (!tracker.isDefined()) {
                return ++queries;
            }
            Long known = (Long) QUERIES.get(tracker.get());
            if (known == null) {
                known = Long.valueOf(++queries);
                QUERIES.put(tracker.get(), known);
            }
            return known.longValue();
        }
    }

    public Table createTable(Identifier of, Column[] columns, Transform[] partitions, Map properties)
            throws TableAlreadyExistsException, NoSuchNamespaceException {
        return createTable(of, CatalogV2Util.v2ColumnsToStructType(columns), partitions, properties);
    }

    public Table createTable(Identifier of, StructType schema, Transform[] partitions, Map properties)
            throws TableAlreadyExistsException, NoSuchNamespaceException {
        ObjectNode request = request("create", of);
        describe(request, schema, partitions, ofStream(properties));
        JsonNode answer = Driver.answer(request, null);
        if (Driver.isTaken(answer)) {
            throw new TableAlreadyExistsException(of);
        }
        return table(done(answer), of);
    }

    /** A stream that makes its table names Spark's default format for it, if the user named none. */
    private static Map ofStream(Map properties) {
        String given = (String) properties.get(TableCatalog.PROP_PROVIDER);
        if (given == null || !given.equalsIgnoreCase(SQLConf.get().defaultDataSourceName())) {
            return properties;
        }
        StackTraceElement[] calls = Thread.currentThread().getStackTrace();
        for (int index = 0; index < calls.length; index++) {
            if (calls[index].getClassName().endsWith(".DataStreamWriter")) {
                Map others = new HashMap(properties);
                others.remove(TableCatalog.PROP_PROVIDER);
                return others;
            }
        }
        return properties;
    }

    /** CREATE TABLE ... LIKE: the columns of another table, and none of its rows or properties. */
    public Table createTableLike(Identifier of, TableInfo told, Table source)
            throws TableAlreadyExistsException, NoSuchNamespaceException {
        Map properties = new HashMap(told.properties());
        properties.remove(TableCatalog.PROP_PROVIDER);
        return createTable(of, CatalogV2Util.v2ColumnsToStructType(source.columns()), told.partitions(), properties);
    }

    static void describe(ObjectNode request, StructType schema, Transform[] partitions, Map properties) {
        request.put("schema", schema.json());
        request.set("properties", Driver.object(properties));
        ArrayNode cuts = request.putArray("partitions");
        for (int index = 0; index < partitions.length; index++) {
            ObjectNode cut = cuts.addObject().put("name", partitions[index].name()).put("text", partitions[index].describe());
            cut.set("columns", columns(partitions[index].references()));
        }
    }

    private static ArrayNode columns(NamedReference[] references) {
        ArrayNode found = Driver.JSON.createArrayNode();
        for (int index = 0; index < references.length; index++) {
            found.add((JsonNode) Driver.JSON.valueToTree(references[index].fieldNames()));
        }
        return found;
    }

    public Table alterTable(Identifier of, TableChange[] changes) throws NoSuchTableException {
        ObjectNode request = request("alter", of).put("query", query()).put("evolving", isEvolving());
        ArrayNode described = request.putArray("changes");
        for (int index = 0; index < changes.length; index++) {
            described.add(described(changes[index]));
        }
        JsonNode answer = Driver.answer(request, null);
        if (Driver.isMissing(answer)) {
            throw new NoSuchTableException(of);
        }
        return table(done(answer), of);
    }

    /** Whether Spark's analyzer asks, for a statement WITH SCHEMA EVOLUTION, and not the user by ALTER TABLE. */
    private static boolean isEvolving() {
        StackTraceElement[] calls = Thread.currentThread().getStackTrace();
        for (int index = 0; index < calls.length; index++) {
            if (calls[index].getClassName().indexOf("SchemaEvolution") >= 0) {
                return true;
            }
        }
        return false;
    }

    /** A change with all that it says: what Python does not know of it, it refuses. */
    private static ObjectNode described(Object change) {
        ObjectNode told = Driver.JSON.createObjectNode().put("kind", change.getClass().getSimpleName());
        Method[] members = change.getClass().getDeclaredMethods();
        for (int index = 0; index < members.length; index++) {
            Method member = members[index];
            if (member.getParameterCount() > 0 || !Modifier.isPublic(member.getModifiers()) || Modifier.isStatic(member.getModifiers())
                    || member.getName().equals("hashCode") || member.getName().equals("toString")) {
                continue;
            }
            try {
                member.setAccessible(true);
                tell(told, member.getName(), member.invoke(change, new Object[0]));
            } catch (ReflectiveOperationException failure) {
                throw new IllegalStateException(failure);
            }
        }
        return told;
    }

    private static void tell(ObjectNode told, String name, Object value) {
        if (value == null) {
            told.putNull(name);
        } else if (value instanceof Boolean) {
            told.put(name, ((Boolean) value).booleanValue());
        } else if (value instanceof String[]) {
            told.set(name, Driver.JSON.valueToTree(value));
        } else if (value instanceof NamedReference[]) {
            told.set(name, columns((NamedReference[]) value));
        } else if (value instanceof DataType) {
            told.put(name, ((DataType) value).json());
        } else {
            told.put(name, value.toString());
        }
    }

    public boolean dropTable(Identifier of) {
        return Driver.ask(request("drop", of), null).asBoolean();
    }

    public void renameTable(Identifier from, Identifier to) throws NoSuchTableException, TableAlreadyExistsException {
        ObjectNode request = request("rename", from);
        request.set("to", Driver.at(request("", to), "name"));
        JsonNode answer = Driver.answer(request, null);
        if (Driver.isMissing(answer)) {
            throw new NoSuchTableException(from);
        }
        if (Driver.isTaken(answer)) {
            throw new TableAlreadyExistsException(to);
        }
        done(answer);
    }

    // ---- namespaces ----

    public String[][] listNamespaces() throws NoSuchNamespaceException {
        return listNamespaces(new String[0]);
    }

    public String[][] listNamespaces(String[] namespace) throws NoSuchNamespaceException {
        JsonNode answer = Driver.answer(request("list_namespaces", namespace, null), null);
        if (Driver.isMissing(answer)) {
            throw new NoSuchNamespaceException(namespace);
        }
        JsonNode found = done(answer);
        String[][] names = new String[found.size()][];
        for (int index = 0; index < names.length; index++) {
            names[index] = new String[namespace.length + 1];
            System.arraycopy(namespace, 0, names[index], 0, namespace.length);
            names[index][namespace.length] = Driver.at(found, index).asText();
        }
        return names;
    }

    public Map loadNamespaceMetadata(String[] namespace) throws NoSuchNamespaceException {
        JsonNode answer = Driver.answer(request("load_namespace", namespace, null), null);
        if (Driver.isMissing(answer)) {
            throw new NoSuchNamespaceException(namespace);
        }
        return (Map) Driver.JSON.convertValue(done(answer), Map.class);
    }

    public void createNamespace(String[] namespace, Map properties) throws NamespaceAlreadyExistsException {
        ObjectNode request = request("create_namespace", namespace, null);
        request.set("properties", Driver.object(properties));
        JsonNode answer = Driver.answer(request, null);
        if (Driver.isTaken(answer)) {
            throw new NamespaceAlreadyExistsException(namespace);
        }
        done(answer);
    }

    public void alterNamespace(String[] namespace, NamespaceChange[] changes) {
        throw new UnsupportedOperationException("[TILTYARD.UNSUPPORTED_FEATURE] A namespace of a lake has no properties to alter.");
    }

    public boolean dropNamespace(String[] namespace, boolean cascade) throws NoSuchNamespaceException {
        JsonNode answer = Driver.answer(request("drop_namespace", namespace, null).put("cascade", cascade), null);
        if (Driver.isMissing(answer)) {
            throw new NoSuchNamespaceException(namespace);
        }
        return done(answer).asBoolean();
    }

    // ---- procedures ----

    public UnboundProcedure loadProcedure(Identifier of) {
        return new LakeProcedure(this, of, Driver.ask(request("load_procedure", of), null));
    }

    public Identifier[] listProcedures(String[] namespace) {
        JsonNode found = Driver.ask(request("list_procedures", namespace, null), null);
        Identifier[] names = new Identifier[found.size()];
        for (int index = 0; index < names.length; index++) {
            names[index] = Identifier.of(namespace, Driver.at(found, index).asText());
        }
        return names;
    }
}
