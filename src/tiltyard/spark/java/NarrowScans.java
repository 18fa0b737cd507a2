package tiltyard;

import java.io.ByteArrayInputStream;
import java.io.DataInputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.OptionalLong;
import java.util.Set;
import java.util.WeakHashMap;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.Function;

import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.ipc.ArrowStreamReader;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.QueryPlanningTracker;
import org.apache.spark.sql.catalyst.expressions.Alias;
import org.apache.spark.sql.catalyst.expressions.And;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.AttributeReference;
import org.apache.spark.sql.catalyst.expressions.AttributeSet;
import org.apache.spark.sql.catalyst.expressions.Cast;
import org.apache.spark.sql.catalyst.expressions.Coalesce;
import org.apache.spark.sql.catalyst.expressions.Divide;
import org.apache.spark.sql.catalyst.expressions.DynamicPruningSubquery;
import org.apache.spark.sql.catalyst.expressions.EqualTo;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.expressions.GetStructField;
import org.apache.spark.sql.catalyst.expressions.If;
import org.apache.spark.sql.catalyst.expressions.InSet;
import org.apache.spark.sql.catalyst.expressions.Like;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.NamedExpression$;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection$;
import org.apache.spark.sql.catalyst.expressions.aggregate.AggregateExpression;
import org.apache.spark.sql.catalyst.expressions.aggregate.AggregateFunction;
import org.apache.spark.sql.catalyst.expressions.aggregate.Average;
import org.apache.spark.sql.catalyst.expressions.aggregate.Count;
import org.apache.spark.sql.catalyst.expressions.aggregate.Max;
import org.apache.spark.sql.catalyst.expressions.aggregate.Min;
import org.apache.spark.sql.catalyst.expressions.aggregate.Sum;
import org.apache.spark.sql.catalyst.plans.logical.Aggregate;
import org.apache.spark.sql.catalyst.plans.logical.Filter;
import org.apache.spark.sql.catalyst.plans.logical.LocalLimit;
import org.apache.spark.sql.catalyst.plans.logical.LocalRelation$;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.catalyst.plans.logical.Subquery;
import org.apache.spark.sql.catalyst.plans.logical.V2WriteCommand;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.Statistics;
import org.apache.spark.sql.connector.read.SupportsReportStatistics;
import org.apache.spark.sql.connector.read.SupportsRuntimeV2Filtering;
import org.apache.spark.sql.connector.write.RowLevelOperationTable;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2ScanRelation;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceCreationResult;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceReadInfo;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.execution.datasources.v2.python.PythonScan;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.Metadata;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.ArrowUtils$;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.apache.spark.sql.vectorized.ArrowColumnVector;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;

import scala.Option;
import scala.collection.Iterator;
import scala.collection.immutable.Seq;

/**
 * Replaces each scan of a Tiltyard table by one of its own for this very plan, which reads only what the plan needs.
 *
 * What may be pushed is decided in Python: this side describes the plan as text and builds what the answer says.
 */
public final class NarrowScans extends Rule {

    private static final String NAME = "tiltyard";
    private static final byte[] BEGIN = "tiltyard-facts:".getBytes(StandardCharsets.US_ASCII);
    private static final byte[] END = ":tiltyard-end".getBytes(StandardCharsets.US_ASCII);

    private final Function planner;
    private final Function columnar;
    private final AtomicLong queries = new AtomicLong();
    private final Map numbers = new WeakHashMap();
    private final ThreadLocal query = new ThreadLocal();
    private volatile String failure = "";

    /** {@code columnar} makes readers of columns from readers of rows; null where this Spark has only the latter. */
    public NarrowScans(Function planner, Function columnar) {
        this.planner = planner;
        this.columnar = columnar;
    }

    public String lastFailure() {
        return failure;
    }

    public String ruleName() {
        return "tiltyard.NarrowScans";
    }

    public TreeNode apply(TreeNode plan) {
        LogicalPlan whole = (LogicalPlan) plan;
        if (isLeftToPython(whole) || !reads(whole) || whole instanceof Subquery && isOfCommand()) {
            return plan;
        }
        query.set(numberOf(QueryPlanningTracker.get()));
        try {
            return rewrite(whole);
        } catch (Exception failure) {
            // A plan that is not narrowed is slower, never wrong.
            this.failure = String.valueOf(failure);
            return plan;
        }
    }

    /** The same number for all that is planned for one query: subqueries are planned each for itself. */
    private Long numberOf(Option tracker) {
        if (!tracker.isDefined()) {
            return Long.valueOf(queries.incrementAndGet());
        }
        synchronized (numbers) {
            Long known = (Long) numbers.get(tracker.get());
            if (known == null) {
                known = Long.valueOf(queries.incrementAndGet());
                numbers.put(tracker.get(), known);
            }
            return known;
        }
    }

    private static boolean reads(LogicalPlan plan) {
        if (plan instanceof DataSourceV2ScanRelation) {
            return isOurs((DataSourceV2ScanRelation) plan);
        }
        for (Iterator all = plan.children().iterator(); all.hasNext();) {
            if (reads((LogicalPlan) all.next())) {
                return true;
            }
        }
        return false;
    }

    private static boolean isOurs(DataSourceV2ScanRelation node) {
        return isOfCatalog(node) || node.scan() instanceof PythonScan && NAME.equalsIgnoreCase(node.relation().table().name());
    }

    /** Whether the scan is of a table that was found by name in a catalog of ours, whose classes another loader has. */
    private static boolean isOfCatalog(DataSourceV2ScanRelation node) {
        return node.scan().getClass().getName().startsWith("tiltyard.LakeScan");
    }

    /** Whether a statement is executed by Python: what it reads is planned there, on the version that it changes. */
    private static boolean isLeftToPython(LogicalPlan plan) {
        if (plan instanceof V2WriteCommand && ((V2WriteCommand) plan).table() instanceof DataSourceV2Relation) {
            Object table = ((DataSourceV2Relation) ((V2WriteCommand) plan).table()).table();
            if (table instanceof RowLevelOperationTable) {
                table = ((RowLevelOperationTable) table).table();
            }
            return table.getClass().getName().equals("tiltyard.LakeTable");
        }
        return false;
    }

    /**
     * Whether a subquery is planned for a command, which may be a statement that Python executes: Spark plans subqueries each for itself,
     * before the rest, and shows nothing of that. What Python plans in turn while it executes one is no part of it.
     */
    private static boolean isOfCommand() {
        StackTraceElement[] calls = Thread.currentThread().getStackTrace();
        for (int index = 0; index < calls.length; index++) {
            if (calls[index].getClassName().startsWith("py4j.")) {
                return false;
            }
            if (calls[index].getMethodName().equals("runCommand")) {
                return true;
            }
        }
        return false;
    }

    private LogicalPlan rewrite(LogicalPlan plan) throws Exception {
        LogicalPlan done = null;
        if (plan instanceof Aggregate) {
            done = aggregate((Aggregate) plan);
        } else if (plan instanceof LocalLimit) {
            LocalLimit limit = (LocalLimit) plan;
            Chain chain = Chain.of(limit.child());
            if (chain != null && limit.limitExpr() instanceof Literal) {
                LogicalPlan child = narrowed(chain, ((Literal) limit.limitExpr()).toString());
                done = child == null ? null : new LocalLimit(limit.limitExpr(), child);
            }
        }
        if (done == null) {
            Chain chain = Chain.of(plan);
            if (chain != null) {
                done = narrowed(chain, null);
                return done == null ? plan : done;
            }
        }
        return done == null ? withRewrittenChildren(plan) : done;
    }

    private LogicalPlan withRewrittenChildren(LogicalPlan plan) throws Exception {
        List children = new ArrayList();
        boolean changed = false;
        for (Iterator all = plan.children().iterator(); all.hasNext();) {
            LogicalPlan child = (LogicalPlan) all.next();
            LogicalPlan other = reads(child) ? rewrite(child) : child;
            changed = changed || other != child;
            children.add(other);
        }
        return changed ? (LogicalPlan) plan.withNewChildren(seq(children)) : plan;
    }

    /**
     * The condition with the plans in it rewritten that give keys of joins: they are planned as they are, and Spark broadcasts
     * once only what is the same plan as the join's side.
     */
    private Expression withRewrittenPlans(Expression condition) throws Exception {
        if (condition instanceof And) {
            return new And(withRewrittenPlans(((And) condition).left()), withRewrittenPlans(((And) condition).right()));
        }
        if (condition instanceof DynamicPruningSubquery) {
            DynamicPruningSubquery keys = (DynamicPruningSubquery) condition;
            LogicalPlan query = keys.buildQuery();
            return reads(query) ? (Expression) keys.withNewPlan(rewrite(query)) : condition;
        }
        return condition;
    }

    /** Columns, filters and a limit into the scan; null where the answer is no. */
    private LogicalPlan narrowed(Chain chain, String limit) throws Exception {
        List filters = chain.conjuncts();
        Set needed = chain.project == null ? null : names(chain, chain.project.references());
        StringBuilder request = begin(chain, filters);
        request.append(",\"limit\":").append(limit).append(",\"needed\":");
        Text.strings(request, needed);
        Answer answer = ask(request.append('}'));
        if (answer == null) {
            return null;
        }
        List output = new ArrayList();
        for (Iterator all = chain.scan.output().iterator(); all.hasNext();) {
            Attribute one = (Attribute) all.next();
            if (answer.columns.contains(one.name())) {
                output.add(one);
            }
        }
        LogicalPlan plan = answer.rowsHere == null ? scanOf(chain, output, answer) : rowsHere(output, answer.rowsHere);
        Expression left = null;
        for (int index = 0; index < filters.size(); index++) {
            Expression one = (Expression) filters.get(index);
            // Keys of joins only leave out what the join does: they are for scans, not for rows that are here.
            if (!answer.exact.contains(Integer.valueOf(index)) && !(answer.rowsHere != null && one instanceof DynamicPruningSubquery)) {
                left = left == null ? one : new And(left, one);
            }
        }
        plan = left == null ? plan : new Filter(withRewrittenPlans(left), plan);
        if (chain.project == null) {
            return plan;
        }
        return (LogicalPlan) chain.project.withNewChildren(seq(one(plan)));
    }

    /** The rows of a small table, which Python read while it planned: no job reads them, and no worker. */
    private static LogicalPlan rowsHere(List output, byte[] stream) throws IOException {
        List rows = new ArrayList();
        BufferAllocator memory = ArrowUtils$.MODULE$.rootAllocator().newChildAllocator("tiltyard rows of a small table", 0, Long.MAX_VALUE);
        ArrowStreamReader reader = new ArrowStreamReader(new ByteArrayInputStream(stream), memory);
        try {
            UnsafeProjection copied = UnsafeProjection$.MODULE$.create(structOf(output));
            while (reader.loadNextBatch()) {
                VectorSchemaRoot root = reader.getVectorSchemaRoot();
                ColumnVector[] columns = new ColumnVector[output.size()];
                for (int index = 0; index < columns.length; index++) {
                    columns[index] = new ArrowColumnVector(root.getVector(index));
                }
                ColumnarBatch batch = new ColumnarBatch(columns, root.getRowCount());
                for (java.util.Iterator all = batch.rowIterator(); all.hasNext();) {
                    rows.add(copied.apply((InternalRow) all.next()).copy());
                }
            }
        } finally {
            reader.close();
            memory.close();
        }
        return (LogicalPlan) LocalRelation$.MODULE$.apply(seq(output), seq(rows), false, Option.apply(null));
    }

    /** count(*) from what is known of the version, or partial aggregates made by the workers; null where the answer is no. */
    private LogicalPlan aggregate(Aggregate plan) throws Exception {
        Chain chain = Chain.of(plan.child());
        if (chain == null || chain.renames()) {
            return null;
        }
        if (chain.filter == null && plan.groupingExpressions().isEmpty()) {
            LogicalPlan counted = counted(plan, chain);
            if (counted != null) {
                return counted;
            }
        }
        Partials partials = new Partials(chain);
        List keys = new ArrayList();
        for (Iterator all = plan.groupingExpressions().iterator(); all.hasNext();) {
            Expression one = (Expression) all.next();
            if (!(one instanceof AttributeReference) || chain.column((AttributeReference) one) == null) {
                return null;
            }
            if (!keys.contains(one)) {
                keys.add(one);
            }
        }
        List outputs = new ArrayList();
        for (Iterator all = plan.aggregateExpressions().iterator(); all.hasNext();) {
            Expression one = partials.finished((Expression) all.next());
            if (one == null) {
                return null;
            }
            outputs.add(one);
        }
        List filters = chain.conjuncts();
        StringBuilder request = begin(chain, filters);
        List output = new ArrayList(keys);
        output.addAll(partials.attributes);
        request.append(",\"ansi\":").append(SQLConf.get().ansiEnabled());
        request.append(",\"aggregate\":{\"keys\":");
        List keyNames = new ArrayList();
        for (int index = 0; index < keys.size(); index++) {
            keyNames.add(((Attribute) keys.get(index)).name());
        }
        Text.strings(request, keyNames);
        request.append(",\"partials\":[").append(partials.described).append("],\"schema\":");
        request.append(structOf(output).json()).append("}}");
        Answer answer = ask(request);
        if (answer == null) {
            return null;
        }
        LogicalPlan child = answer.rowsHere == null ? scanOf(chain, output, answer) : rowsHere(output, answer.rowsHere);
        return new Aggregate(plan.groupingExpressions(), seq(outputs), child, plan.hint());
    }

    /** count(*) and nothing else: a version knows how many rows it has. */
    private LogicalPlan counted(Aggregate plan, Chain chain) throws Exception {
        List aliases = new ArrayList();
        for (Iterator all = plan.aggregateExpressions().iterator(); all.hasNext();) {
            Object one = all.next();
            if (!(one instanceof Alias) || !isCountOfRows(((Alias) one).child())) {
                return null;
            }
            aliases.add(one);
        }
        byte[] bytes = (byte[]) planner.apply(begin(chain, new ArrayList()).append(",\"count\":true}").toString());
        DataInputStream in = new DataInputStream(new ByteArrayInputStream(bytes));
        if (in.readInt() == 0 || aliases.isEmpty()) {
            return null;
        }
        Object[] values = new Object[aliases.size()];
        java.util.Arrays.fill(values, Long.valueOf(in.readLong()));
        List rows = one(new GenericInternalRow(values));
        List attributes = new ArrayList();
        for (int index = 0; index < values.length; index++) {
            attributes.add(((Alias) aliases.get(index)).toAttribute());
        }
        return (LogicalPlan) LocalRelation$.MODULE$.apply(seq(attributes), seq(rows), false, Option.apply(null));
    }

    private static boolean isCountOfRows(Expression expression) {
        if (!(expression instanceof AggregateExpression)) {
            return false;
        }
        AggregateExpression whole = (AggregateExpression) expression;
        AggregateFunction function = whole.aggregateFunction();
        if (!(function instanceof Count) || whole.isDistinct() || whole.filter().isDefined() || function.children().size() != 1) {
            return false;
        }
        Object input = function.children().head();
        return input instanceof Literal && ((Literal) input).value() != null;
    }

    private StringBuilder begin(Chain chain, List filters) {
        StringBuilder request = new StringBuilder("{\"query\":").append(query.get()).append(",\"facts\":");
        Text.string(request, chain.facts);
        request.append(",\"schema\":").append(structOf(list(chain.scan.output())).json()).append(",\"filters\":[");
        for (int index = 0; index < filters.size(); index++) {
            Expression one = (Expression) filters.get(index);
            request.append(index == 0 ? "{\"uses\":" : ",{\"uses\":");
            Text.strings(request, names(chain, one.references()));
            request.append(",\"is\":");
            Text.expression(request, one, chain);
            request.append('}');
        }
        return request.append(']');
    }

    private Answer ask(StringBuilder request) throws IOException {
        byte[] bytes = (byte[]) planner.apply(request.toString());
        DataInputStream in = new DataInputStream(new ByteArrayInputStream(bytes));
        return in.readInt() == 0 ? null : new Answer(in);
    }

    private LogicalPlan scanOf(Chain chain, List output, Answer answer) {
        DataSourceV2ScanRelation old = chain.scan;
        Object[] parts = new Object[old.productArity()];
        for (int index = 0; index < parts.length; index++) {
            parts[index] = old.productElement(index);
        }
        parts[1] = new NarrowScan(structOf(output), answer, planner, columnar);
        parts[2] = seq(output);
        return (LogicalPlan) old.makeCopy(parts);
    }

    static PythonScan pythonScan(PythonDataSourceReadInfo info, StructType schema) {
        PythonDataSourceV2 source = new PythonDataSourceV2();
        source.setShortName(NAME);
        source.setReadInfo(info);
        return new PythonScan(source, NAME, schema, CaseInsensitiveStringMap.empty(), new org.apache.spark.sql.sources.Filter[0]);
    }

    static StructType structOf(List attributes) {
        StructField[] fields = new StructField[attributes.size()];
        for (int index = 0; index < fields.length; index++) {
            Attribute one = (Attribute) attributes.get(index);
            fields[index] = new StructField(one.name(), one.dataType(), one.nullable(), one.metadata());
        }
        return new StructType(fields);
    }

    private static Set names(Chain chain, AttributeSet references) {
        Set found = new java.util.TreeSet();
        for (Iterator all = references.iterator(); all.hasNext();) {
            String name = chain.column((Attribute) all.next());
            if (name != null) {
                found.add(name);
            }
        }
        return found;
    }

    static List one(Object element) {
        List list = new ArrayList();
        list.add(element);
        return list;
    }

    static List list(Seq elements) {
        List list = new ArrayList();
        for (Iterator all = elements.iterator(); all.hasNext();) {
            list.add(all.next());
        }
        return list;
    }

    static Seq seq(List elements) {
        return scala.jdk.javaapi.CollectionConverters.asScala(elements).toSeq();
    }

    /** What Python answered: which filters are done with, which columns come, how much it is, and how to read it. */
    static final class Answer {
        final Set exact = new HashSet();
        final Set columns = new HashSet();
        final long rows;
        final long bytes;
        final String description;
        final String identity;
        final long number;
        /** The rows themselves as an Arrow stream, where they are few; null where workers read them, as {@code info} says. */
        final byte[] rowsHere;
        final PythonDataSourceReadInfo info;

        Answer(DataInputStream in) throws IOException {
            for (int left = in.readInt(); left > 0; left--) {
                exact.add(Integer.valueOf(in.readInt()));
            }
            for (int left = in.readInt(); left > 0; left--) {
                columns.add(text(in));
            }
            rows = in.readLong();
            bytes = in.readLong();
            description = text(in);
            identity = text(in);
            number = in.readLong();
            int length = in.readInt();
            if (length < 0) {
                rowsHere = null;
                info = PythonDataSourceReadInfo.receive(in);
            } else {
                rowsHere = new byte[length];
                in.readFully(rowsHere);
                info = null;
            }
        }

        private static String text(DataInputStream in) throws IOException {
            byte[] bytes = new byte[in.readInt()];
            in.readFully(bytes);
            return new String(bytes, StandardCharsets.UTF_8);
        }
    }

    /** The scan Spark sees: reads as a Python source does, and says how much there is. Never leaves the driver. */
    public static final class NarrowScan implements SupportsReportStatistics, SupportsRuntimeV2Filtering {
        private final StructType schema;
        private final Answer answer;
        private final Function planner;
        private final Function columnar;
        private PythonScan inner;

        /** Rows for each key from which it pays to tell workers the keys: telling one takes about as long as handing over so many rows. */
        private static final long ROWS_PER_KEY = 32;

        NarrowScan(StructType schema, Answer answer, Function planner, Function columnar) {
            this.schema = schema;
            this.answer = answer;
            this.planner = planner;
            this.columnar = columnar;
            this.inner = pythonScan(answer.info, schema);
        }

        /** None: Spark asked the scan that was here before, and put its keys above. */
        public NamedReference[] filterAttributes() {
            return new NamedReference[0];
        }

        /** Keys that the other side of a join has, known now that it was read: what has none of them need not be handed over. */
        public void filter(Predicate[] predicates) {
            StringBuilder request = new StringBuilder("{\"again\":").append(answer.number).append(",\"among\":[");
            String comma = "";
            for (int index = 0; index < predicates.length; index++) {
                boolean pays = answer.rows / ROWS_PER_KEY >= predicates[index].children().length - 1;
                if (pays && Text.among(request, comma, predicates[index])) {
                    comma = ",";
                }
            }
            if (comma.isEmpty()) {
                return;
            }
            try {
                byte[] bytes = (byte[]) planner.apply(request.append("]}").toString());
                DataInputStream in = new DataInputStream(new ByteArrayInputStream(bytes));
                if (in.readInt() != 0) {
                    inner = pythonScan(PythonDataSourceReadInfo.receive(in), schema);
                }
            } catch (IOException failure) {
                // All rows are read, and the join leaves out what it always would.
            }
        }

        public ColumnarSupportMode columnarSupportMode() {
            return columnar == null ? ColumnarSupportMode.UNSUPPORTED : ColumnarSupportMode.SUPPORTED;
        }

        public StructType readSchema() {
            return schema;
        }

        public String description() {
            return "tiltyard " + answer.description;
        }

        public Batch toBatch() {
            return new NarrowBatch(inner.toBatch(), this);
        }

        /** The same rows of the same version in the same columns: then Spark reads, shuffles and broadcasts them once. */
        public boolean equals(Object other) {
            return other instanceof NarrowScan && answer.identity.equals(((NarrowScan) other).answer.identity)
                && schema.equals(((NarrowScan) other).schema);
        }

        public int hashCode() {
            return answer.identity.hashCode();
        }

        public CustomMetric[] supportedCustomMetrics() {
            return inner.supportedCustomMetrics();
        }

        public Statistics estimateStatistics() {
            return new Known(answer.rows, answer.bytes);
        }
    }

    /** What a physical plan compares scans by. */
    static final class NarrowBatch implements Batch {
        private final Batch inner;
        private final NarrowScan scan;

        NarrowBatch(Batch inner, NarrowScan scan) {
            this.inner = inner;
            this.scan = scan;
        }

        public InputPartition[] planInputPartitions() {
            return inner.planInputPartitions();
        }

        public PartitionReaderFactory createReaderFactory() {
            PartitionReaderFactory rows = inner.createReaderFactory();
            return scan.columnar == null ? rows : (PartitionReaderFactory) scan.columnar.apply(rows);
        }

        public boolean equals(Object other) {
            return other instanceof NarrowBatch && scan.equals(((NarrowBatch) other).scan);
        }

        public int hashCode() {
            return scan.hashCode();
        }
    }

    static final class Known implements Statistics {
        private final long rows;
        private final long bytes;

        Known(long rows, long bytes) {
            this.rows = rows;
            this.bytes = bytes;
        }

        public OptionalLong sizeInBytes() {
            return OptionalLong.of(bytes);
        }

        public OptionalLong numRows() {
            return OptionalLong.of(rows);
        }
    }

    /** A projection over a filter over one of our scans; either may be missing. */
    static final class Chain {
        final Project project;
        final Filter filter;
        final DataSourceV2ScanRelation scan;
        final String facts;

        private Chain(Project project, Filter filter, DataSourceV2ScanRelation scan, String facts) {
            this.project = project;
            this.filter = filter;
            this.scan = scan;
            this.facts = facts;
        }

        static Chain of(LogicalPlan plan) throws Exception {
            Project project = null;
            Filter filter = null;
            if (plan instanceof Project) {
                project = (Project) plan;
                plan = project.child();
            }
            if (plan instanceof Filter) {
                filter = (Filter) plan;
                plan = filter.child();
            }
            if (!(plan instanceof DataSourceV2ScanRelation) || !isOurs((DataSourceV2ScanRelation) plan)) {
                return null;
            }
            DataSourceV2ScanRelation scan = (DataSourceV2ScanRelation) plan;
            String facts = factsOf(scan);
            return facts == null ? null : new Chain(project, filter, scan, facts);
        }

        /** What the source noted about itself when the DataFrame was made; null where it was made in a way we do not know. */
        private static String factsOf(DataSourceV2ScanRelation node) throws Exception {
            if (isOfCatalog(node)) {
                return (String) node.scan().getClass().getMethod("facts", new Class[0]).invoke(node.scan(), new Object[0]);
            }
            Object table = node.relation().table();
            java.lang.reflect.Field held = table.getClass().getDeclaredField("ds");
            held.setAccessible(true);
            Object source = held.get(table);
            java.lang.reflect.Field made = source.getClass().getDeclaredField("dataSourceInPython");
            made.setAccessible(true);
            PythonDataSourceCreationResult result = (PythonDataSourceCreationResult) made.get(source);
            if (result == null) {
                return null;
            }
            byte[] bytes = result.dataSource();
            int from = find(bytes, BEGIN, 0);
            int to = from < 0 ? -1 : find(bytes, END, from);
            if (to < 0) {
                return null;
            }
            from += BEGIN.length;
            return new String(bytes, from, to - from, StandardCharsets.UTF_8);
        }

        private static int find(byte[] bytes, byte[] wanted, int from) {
            for (int start = from; start <= bytes.length - wanted.length; start++) {
                int same = 0;
                while (same < wanted.length && bytes[start + same] == wanted[same]) {
                    same++;
                }
                if (same == wanted.length) {
                    return start;
                }
            }
            return -1;
        }

        List conjuncts() {
            List found = new ArrayList();
            if (filter != null) {
                split(filter.condition(), found);
            }
            return found;
        }

        private static void split(Expression condition, List found) {
            if (condition instanceof And) {
                split(((And) condition).left(), found);
                split(((And) condition).right(), found);
            } else {
                found.add(condition);
            }
        }

        /** Whether the projection does more than leave columns out. */
        boolean renames() {
            if (project == null) {
                return false;
            }
            for (Iterator all = project.projectList().iterator(); all.hasNext();) {
                if (!(all.next() instanceof AttributeReference)) {
                    return true;
                }
            }
            return false;
        }

        /** The column an attribute stands for; null where it is none of this scan. */
        String column(Attribute attribute) {
            for (Iterator all = scan.output().iterator(); all.hasNext();) {
                Attribute one = (Attribute) all.next();
                if (one.exprId().equals(attribute.exprId())) {
                    return one.name();
                }
            }
            return null;
        }
    }

    /** Aggregates taken apart: what workers compute, and what Spark makes of it. */
    static final class Partials {
        final List attributes = new ArrayList();
        final StringBuilder described = new StringBuilder();
        private final Chain chain;

        Partials(Chain chain) {
            this.chain = chain;
        }

        /** The same expression over partial results; null where one of its aggregates cannot be taken apart. */
        Expression finished(Expression expression) {
            if (expression instanceof AggregateExpression) {
                return aggregate((AggregateExpression) expression);
            }
            List children = new ArrayList();
            boolean changed = false;
            for (Iterator all = expression.children().iterator(); all.hasNext();) {
                Expression child = (Expression) all.next();
                Expression other = finished(child);
                if (other == null) {
                    return null;
                }
                changed = changed || other != child;
                children.add(other);
            }
            return changed ? (Expression) expression.withNewChildren(seq(children)) : expression;
        }

        private Expression aggregate(AggregateExpression whole) {
            AggregateFunction function = whole.aggregateFunction();
            if (whole.isDistinct() || whole.filter().isDefined() || function.children().size() != 1) {
                return null;
            }
            Expression input = (Expression) function.children().head();
            String column = input instanceof AttributeReference ? chain.column((AttributeReference) input) : null;
            if (function instanceof Count) {
                boolean all = input instanceof Literal && ((Literal) input).value() != null;
                if (column == null && !all) {
                    return null;
                }
                return counted(whole, partial(all ? "rows" : "count", column, DataTypes.LongType, false));
            }
            if (column == null) {
                return null;
            }
            if (function instanceof Sum) {
                return over(whole, partial("sum", column, function.dataType(), true));
            }
            if (function instanceof Min || function instanceof Max) {
                return over(whole, partial(function instanceof Min ? "min" : "max", column, input.dataType(), true));
            }
            if (function instanceof Average && DataTypes.DoubleType.equals(function.dataType())) {
                return averaged(whole, column);
            }
            return null;
        }

        private Expression over(AggregateExpression whole, AttributeReference partial) {
            AggregateFunction function = (AggregateFunction) whole.aggregateFunction().withNewChildren(seq(one(partial)));
            return new AggregateExpression(function, whole.mode(), false, whole.filter(), NamedExpression$.MODULE$.newExprId());
        }

        private static Expression sum(AggregateExpression whole, AttributeReference partial) {
            return new AggregateExpression(new Sum(partial), whole.mode(), false, whole.filter(), NamedExpression$.MODULE$.newExprId());
        }

        private static Expression counted(AggregateExpression whole, AttributeReference partial) {
            List both = one(sum(whole, partial));
            both.add(new Literal(Long.valueOf(0), DataTypes.LongType));
            return new Coalesce(seq(both));
        }

        private Expression averaged(AggregateExpression whole, String column) {
            Expression sum = sum(whole, partial("sum_double", column, DataTypes.DoubleType, true));
            Expression count = counted(whole, partial("count", column, DataTypes.LongType, false));
            Expression none = new EqualTo(count, new Literal(Long.valueOf(0), DataTypes.LongType));
            Expression quotient = new Divide(sum, new Cast(count, DataTypes.DoubleType, Option.apply(null)));
            return new If(none, new Literal(null, DataTypes.DoubleType), quotient);
        }

        private AttributeReference partial(String operation, String column, DataType type, boolean nullable) {
            String name = "partial_" + attributes.size();
            described.append(attributes.isEmpty() ? "" : ",").append("{\"op\":\"").append(operation).append("\",\"column\":");
            Text.string(described, column);
            described.append('}');
            AttributeReference made = new AttributeReference(
                name, type, nullable, Metadata.empty(), NamedExpression$.MODULE$.newExprId(), seq(new ArrayList()));
            attributes.add(made);
            return made;
        }
    }

    /** Expressions and names as JSON. */
    static final class Text {
        /** A column and the values that it may have; false where the condition is of another form. */
        static boolean among(StringBuilder to, String comma, Predicate given) {
            org.apache.spark.sql.connector.expressions.Expression[] parts = given.children();
            if (!given.name().equals("IN") || !(parts[0] instanceof NamedReference) || ((NamedReference) parts[0]).fieldNames().length != 1) {
                return false;
            }
            StringBuilder values = new StringBuilder();
            for (int index = 1; index < parts.length; index++) {
                if (!(parts[index] instanceof org.apache.spark.sql.connector.expressions.Literal)) {
                    return false;
                }
                values.append(index == 1 ? "" : ",");
                value(values, ((org.apache.spark.sql.connector.expressions.Literal) parts[index]).value());
            }
            to.append(comma).append("{\"column\":");
            string(to, ((NamedReference) parts[0]).fieldNames()[0]);
            to.append(",\"values\":[").append(values).append("]}");
            return true;
        }

        static void expression(StringBuilder to, Expression node, Chain chain) {
            to.append("{\"c\":");
            string(to, node.getClass().getSimpleName());
            to.append(",\"t\":").append(node.resolved() ? node.dataType().json() : "null");
            if (node instanceof AttributeReference) {
                to.append(",\"n\":");
                string(to, chain.column((AttributeReference) node));
            } else if (node instanceof GetStructField) {
                GetStructField field = (GetStructField) node;
                to.append(",\"n\":");
                string(to, ((StructType) field.child().dataType()).fields()[field.ordinal()].name());
            } else if (node instanceof Literal) {
                to.append(",\"v\":");
                value(to, ((Literal) node).value());
            } else if (node instanceof Like) {
                to.append(",\"v\":");
                string(to, String.valueOf(((Like) node).escapeChar()));
            } else if (node instanceof InSet) {
                to.append(",\"vs\":[");
                String comma = "";
                for (Iterator all = ((InSet) node).hset().iterator(); all.hasNext();) {
                    to.append(comma);
                    value(to, all.next());
                    comma = ",";
                }
                to.append(']');
            }
            to.append(",\"k\":[");
            String comma = "";
            for (Iterator all = node.children().iterator(); all.hasNext();) {
                to.append(comma);
                expression(to, (Expression) all.next(), chain);
                comma = ",";
            }
            to.append("]}");
        }

        private static void value(StringBuilder to, Object value) {
            if (value instanceof byte[]) {
                string(to, java.util.Base64.getEncoder().encodeToString((byte[]) value));
            } else {
                string(to, value == null ? null : value.toString());
            }
        }

        static void strings(StringBuilder to, java.util.Collection all) {
            if (all == null) {
                to.append("null");
                return;
            }
            to.append('[');
            String comma = "";
            for (java.util.Iterator each = all.iterator(); each.hasNext();) {
                to.append(comma);
                string(to, (String) each.next());
                comma = ",";
            }
            to.append(']');
        }

        static void string(StringBuilder to, String text) {
            if (text == null) {
                to.append("null");
                return;
            }
            to.append('"');
            for (int index = 0; index < text.length(); index++) {
                char one = text.charAt(index);
                if (one == '"' || one == '\\') {
                    to.append('\\').append(one);
                } else if (one < ' ' || one > '~') {
                    to.append(String.format("\\u%04x", new Object[] {Integer.valueOf(one)}));
                } else {
                    to.append(one);
                }
            }
            to.append('"');
        }
    }
}
