package tiltyard;

import java.lang.reflect.Field;
import java.util.HashMap;
import java.util.Map;
import java.util.function.Function;

import org.apache.spark.sql.catalyst.plans.logical.V2WriteCommand;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import org.apache.spark.sql.execution.datasources.v2.python.PythonWrite;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

import scala.Option;

/**
 * Tells a writer of ours which version its rows were read from, where a plan overwrites the very table that it reads: Spark shows a writer
 * in Python nothing of the plan. Which version that is, Python finds out.
 */
public final class SelfOverwrites extends Rule {

    private static final String NAME = "tiltyard";
    private static final String EXPECTED = "expected_version";

    private final Function finds;

    public SelfOverwrites(Function finds) {
        this.finds = finds;
    }

    public String ruleName() {
        return "tiltyard.SelfOverwrites";
    }

    public TreeNode apply(TreeNode plan) {
        // By its name: the compiler cannot read that class.
        if (!plan.getClass().getSimpleName().equals("OverwriteByExpression") || !isOurs(((V2WriteCommand) plan).table())) {
            return plan;
        }
        try {
            Option write = (Option) plan.getClass().getMethod("write", new Class[0]).invoke(plan, new Object[0]);
            if (write.isDefined() && write.get() instanceof PythonWrite) {
                tell((PythonWrite) write.get(), plan);
            }
        } catch (ReflectiveOperationException failure) {
            throw new IllegalArgumentException("This Spark does not let an overwrite be told what it reads: " + failure);
        }
        return plan;
    }

    private void tell(PythonWrite write, TreeNode overwrite) throws ReflectiveOperationException {
        Field held = PythonWrite.class.getDeclaredField("info");
        held.setAccessible(true);
        LogicalWriteInfo info = (LogicalWriteInfo) held.get(write);
        if (info.options().containsKey(EXPECTED)) {
            return; // the caller said it, or this rule did: rules are applied until nothing changes
        }
        String answer = (String) finds.apply(overwrite);
        if (answer.startsWith("!")) {
            throw new IllegalArgumentException(answer.substring(1));
        }
        if (!answer.isEmpty()) {
            held.set(write, new Expecting(info, answer));
        }
    }

    private static boolean isOurs(Object relation) {
        return relation instanceof DataSourceV2Relation && NAME.equalsIgnoreCase(((DataSourceV2Relation) relation).table().name());
    }

    /** What Spark says of a write, with one option more. */
    static final class Expecting implements LogicalWriteInfo {
        private final LogicalWriteInfo info;
        private final CaseInsensitiveStringMap options;

        Expecting(LogicalWriteInfo info, String version) {
            this.info = info;
            Map all = new HashMap(info.options().asCaseSensitiveMap());
            all.put(EXPECTED, version);
            this.options = new CaseInsensitiveStringMap(all);
        }

        public CaseInsensitiveStringMap options() {
            return options;
        }

        public String queryId() {
            return info.queryId();
        }

        public StructType schema() {
            return info.schema();
        }
    }
}
