package tiltyard;

import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;

import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.classic.SparkSession;

import scala.collection.immutable.Seq;
import scala.runtime.AbstractFunction1;

/** The table function table_changes: Python makes the rows, as a data frame of this session. */
public final class LakeChanges extends AbstractFunction1 {

    private static final String NAME = "table_changes";

    private final SparkSession session;

    private LakeChanges(SparkSession session) {
        this.session = session;
    }

    /** Makes a session know it. */
    public static void install(Object given) {
        SparkSession session = (SparkSession) given;
        session.sessionState().tableFunctionRegistry().createOrReplaceTempFunction(NAME, new LakeChanges(session), "built-in");
    }

    public Object apply(Object given) {
        Seq arguments = (Seq) given;
        ObjectNode request = Driver.request(NAME);
        ArrayNode values = request.putArray("values");
        for (int index = 0; index < arguments.size(); index++) {
            Expression argument = (Expression) arguments.apply(index);
            if (!argument.foldable()) {
                throw new IllegalArgumentException(
                    "[TILTYARD.INVALID_INPUT] table_changes takes constants: a table's name and one or two versions.");
            }
            Object value = argument.eval(null);
            if (value == null) {
                values.addNull();
            } else {
                values.add(value.toString());
            }
        }
        Object[] made = new Object[] {null, session};
        Driver.ask(request, made);
        return (LogicalPlan) made[0];
    }
}
