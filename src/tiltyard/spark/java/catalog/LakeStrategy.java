package tiltyard;

import java.util.ArrayList;
import java.util.List;

import com.fasterxml.jackson.databind.node.ObjectNode;

import org.apache.spark.sql.catalyst.analysis.ResolvedIdentifier;
import org.apache.spark.sql.catalyst.expressions.DynamicPruningSubquery;
import org.apache.spark.sql.catalyst.expressions.Literal$;
import org.apache.spark.sql.catalyst.expressions.SubqueryExpression;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.V2CreateTablePlan;
import org.apache.spark.sql.catalyst.plans.logical.V2WriteCommand;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.write.RowLevelOperationTable;
import org.apache.spark.sql.execution.CacheManager;
import org.apache.spark.sql.execution.SparkStrategy;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import org.apache.spark.sql.execution.datasources.v2.V2CommandExec;

import scala.collection.immutable.IndexedSeq;
import scala.collection.immutable.Seq;

/** Has statements that write to a lake be executed by Python, each as one transaction. */
public final class LakeStrategy extends SparkStrategy {

    public Seq apply(LogicalPlan plan) {
        List found = new ArrayList();
        ObjectNode request = requestOf(plan);
        if (request != null) {
            found.add(new Command(request, withoutJoinKeys(plan)));
        }
        return seq(found);
    }

    private static Seq seq(List elements) {
        return scala.jdk.javaapi.CollectionConverters.asScala(elements).toSeq();
    }

    /**
     * The plan without what Spark only added to read less: Python has it optimized once more, and these conditions do not survive that.
     */
    private static LogicalPlan withoutJoinKeys(LogicalPlan plan) {
        return (LogicalPlan) plan.transformAllExpressions(new JoinKeysAreTrue());
    }

    /** Keys of joins that Spark offers to a scan leave out what the join would. */
    private static final class JoinKeysAreTrue extends scala.runtime.AbstractPartialFunction {
        public boolean isDefinedAt(Object expression) {
            return expression instanceof SubqueryExpression;
        }

        public Object applyOrElse(Object expression, scala.Function1 otherwise) {
            if (expression instanceof DynamicPruningSubquery) {
                return Literal$.MODULE$.TrueLiteral();
            }
            if (expression instanceof SubqueryExpression) {
                SubqueryExpression query = (SubqueryExpression) expression;
                LogicalPlan plain = withoutJoinKeys((LogicalPlan) query.plan());
                return plain == query.plan() ? query : query.withNewPlan(plain);
            }
            return otherwise.apply(expression);
        }
    }

    /** What Python is asked to do; null for what is not ours, or is answered by the catalog. */
    private static ObjectNode requestOf(LogicalPlan plan) {
        if (plan instanceof V2WriteCommand && ((V2WriteCommand) plan).table() instanceof DataSourceV2Relation) {
            Object table = ((DataSourceV2Relation) ((V2WriteCommand) plan).table()).table();
            if (table instanceof RowLevelOperationTable) {
                table = ((RowLevelOperationTable) table).table();
            }
            if (table instanceof LakeTable) {
                LakeTable ours = (LakeTable) table;
                return ours.catalog.request("execute", ours.identifier).put("kind", plan.nodeName()).put("mark", ours.mark());
            }
        }
        if (plan instanceof V2CreateTablePlan && !plan.nodeName().equals("CreateTable")) {
            LogicalPlan name = (LogicalPlan) ((V2CreateTablePlan) plan).name();
            if (name instanceof ResolvedIdentifier && ((ResolvedIdentifier) name).catalog() instanceof LakeCatalog) {
                Identifier of = ((ResolvedIdentifier) name).identifier();
                LakeCatalog catalog = (LakeCatalog) ((ResolvedIdentifier) name).catalog();
                return catalog.request("execute", of).put("kind", plan.nodeName()).putNull("mark");
            }
        }
        return null;
    }

    /** The command that Spark executes; it has no rows. */
    public static final class Command extends V2CommandExec {
        private final ObjectNode request;
        private final LogicalPlan plan;

        public Command(ObjectNode request, LogicalPlan plan) {
            this.request = request;
            this.plan = plan;
        }

        public Seq run() {
            Driver.ask(request, new Object[] {plan, session()});
            refreshCached();
            return seq(new ArrayList());
        }

        /** What Spark cached of the table is of the version before. */
        private void refreshCached() {
            List name = new ArrayList();
            name.add(Driver.at(request, "catalog").asText());
            for (int index = 0; index < Driver.at(request, "name").size(); index++) {
                name.add(Driver.at(Driver.at(request, "name"), index).asText());
            }
            CacheManager cache = session().sharedState().cacheManager();
            if (plan instanceof V2CreateTablePlan) {
                cache.uncacheTableOrView(session(), seq(name), true, false);
            } else {
                cache.recacheTableOrView(session(), seq(name), false);
            }
        }

        public Seq output() {
            return seq(new ArrayList());
        }

        public Seq children() {
            return seq(new ArrayList());
        }

        public TreeNode withNewChildrenInternal(IndexedSeq children) {
            return this;
        }

        public String nodeName() {
            return "Tiltyard " + Driver.at(request, "kind").asText();
        }

        public String simpleString(int fields) {
            return nodeName() + " " + Driver.at(request, "name");
        }

        public boolean canEqual(Object other) {
            return other instanceof Command;
        }

        public int productArity() {
            return 2;
        }

        public Object productElement(int index) {
            return index == 0 ? (Object) request : plan;
        }

        public boolean equals(Object other) {
            return this == other;
        }

        public int hashCode() {
            return System.identityHashCode(this);
        }
    }
}
