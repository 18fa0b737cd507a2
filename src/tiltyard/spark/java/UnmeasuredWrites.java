package tiltyard;

import java.util.function.Function;

import org.apache.spark.SparkContext;
import org.apache.spark.sql.catalyst.analysis.NamedRelation;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.V2WriteCommand;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import org.apache.spark.sql.execution.datasources.v2.WriteToDataSourceV2;
import org.apache.spark.sql.internal.SQLConf;

import scala.Option;
import scala.collection.Iterator;

/**
 * Has Spark not measure its batches after each row on their way to our writers: that takes longer than to write them.
 *
 * It changes no plan. What holds for the jobs of a plan is in properties of the thread that runs it; the next plan that this session
 * optimizes in that thread, and that is no write of ours, takes them back. How many rows a batch has instead is decided in Python.
 */
public final class UnmeasuredWrites extends Rule {

    private static final String NAME = "tiltyard";
    private static final String ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch";
    private static final String BYTES = "spark.sql.execution.arrow.maxBytesPerBatch";
    private static final String UNMEASURED = String.valueOf(Integer.MAX_VALUE);
    private static final String OURS = "tiltyard.unmeasured";

    private final SparkContext context;
    private final Function decides;

    public UnmeasuredWrites(SparkContext context, Function decides) {
        this.context = context;
        this.decides = decides;
    }

    public String ruleName() {
        return "tiltyard.UnmeasuredWrites";
    }

    public TreeNode apply(TreeNode plan) {
        LogicalPlan query = written((LogicalPlan) plan);
        String rows = query == null || chosen() || pythonInside(query) ? "" : rowsOf(query);
        if (!rows.isEmpty()) {
            set(rows, UNMEASURED, "true");
        } else if (context.getLocalProperty(OURS) != null) {
            set(null, null, null);
        }
        return plan;
    }

    private String rowsOf(LogicalPlan query) {
        try {
            return (String) decides.apply(query.schema().json());
        } catch (RuntimeException failure) {
            // Nobody there to ask any more: measured rows are slower, never wrong.
            return "";
        }
    }

    private void set(String rows, String bytes, String ours) {
        context.setLocalProperty(ROWS, rows);
        context.setLocalProperty(BYTES, bytes);
        context.setLocalProperty(OURS, ours);
    }

    /** Whether somebody set the size of batches for the session: then that is the size. */
    private static boolean chosen() {
        return SQLConf.get().contains(ROWS) || SQLConf.get().contains(BYTES);
    }

    /** Whether functions in Python take part in making the rows: what goes into those is not known. */
    private static boolean pythonInside(LogicalPlan plan) {
        String name = plan.getClass().getSimpleName();
        if (name.contains("InArrow") || name.contains("InPandas") || name.contains("EvalPython")) {
            return true;
        }
        for (Iterator all = plan.children().iterator(); all.hasNext();) {
            if (pythonInside((LogicalPlan) all.next())) {
                return true;
            }
        }
        return false;
    }

    /** What a plan writes to a table of ours; null if it does not. */
    private static LogicalPlan written(LogicalPlan plan) {
        if (plan instanceof V2WriteCommand) {
            V2WriteCommand write = (V2WriteCommand) plan;
            return isOurs(write.table()) ? write.query() : null;
        }
        if (plan instanceof WriteToDataSourceV2) {
            WriteToDataSourceV2 write = (WriteToDataSourceV2) plan;
            Option relation = write.relation();
            return relation.isDefined() && isOurs((NamedRelation) relation.get()) ? write.query() : null;
        }
        return null;
    }

    private static boolean isOurs(NamedRelation relation) {
        return relation instanceof DataSourceV2Relation && NAME.equalsIgnoreCase(((DataSourceV2Relation) relation).table().name());
    }
}
