package tiltyard;

import java.lang.reflect.Field;
import java.lang.reflect.InvocationHandler;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.util.regex.Pattern;

import com.fasterxml.jackson.databind.JsonNode;

import org.apache.spark.sql.catalyst.parser.ParserInterface;
import org.apache.spark.sql.catalyst.plans.logical.InsertIntoStatement;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.UnresolvedWith;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.execution.command.ExplainCommand;

import scala.Option;
import scala.Product;

/** Spark's parser, with a few statements more: Python reads them, and says what they are in Spark's own grammar. */
public final class LakeParser implements InvocationHandler {

    private static final int FLAGS = Pattern.CASE_INSENSITIVE | Pattern.DOTALL;
    private static final Pattern OURS =
        Pattern.compile("\\s*(EXPLAIN\\s+(\\w+\\s+)?)?(OPTIMIZE|VACUUM|RESTORE|ANALYZE\\s+TABLE|DESC(RIBE)?\\s+HISTORY)\\b.*", FLAGS);

    private final Object parser;
    private final SparkSession session;

    private LakeParser(Object parser, SparkSession session) {
        this.parser = parser;
        this.session = session;
    }

    /** Puts it into a session that exists; into one that has it already, once is enough. */
    public static void install(Object given) throws ReflectiveOperationException {
        SparkSession session = (SparkSession) given;
        Object there = session.sessionState().sqlParser();
        if (Proxy.isProxyClass(there.getClass()) && Proxy.getInvocationHandler(there) instanceof LakeParser) {
            return;
        }
        Object made = Proxy.newProxyInstance(
            ParserInterface.class.getClassLoader(), new Class[] {ParserInterface.class}, new LakeParser(there, session));
        Field field = session.sessionState().getClass().getDeclaredField("sqlParser");
        field.setAccessible(true);
        field.set(session.sessionState(), made);
    }

    public Object invoke(Object proxy, Method method, Object[] given) throws Throwable {
        boolean plan = method.getName().equals("parsePlan") || method.getName().equals("parsePlanWithParameters");
        if (plan && given[0] instanceof String && OURS.matcher((String) given[0]).matches()) {
            JsonNode read = Driver.ask(Driver.request("parse").put("text", (String) given[0]), new Object[] {null, session});
            if (!read.isNull()) {
                given[0] = read.asText();
            }
        }
        if (method.getName().equals("parseMultipartIdentifier") && "".equals(given[0]) && isListing()) {
            return scala.collection.immutable.Nil$.MODULE$; // of a table that is in no namespace
        }
        Object made;
        try {
            made = method.invoke(parser, given);
        } catch (InvocationTargetException failure) {
            throw failure.getCause();
        }
        return plan && made instanceof LogicalPlan ? understood((LogicalPlan) made) : made;
    }

    /** Whether {@code spark.catalog} asks, which makes a text of a table's namespace and reads that again. */
    private static boolean isListing() {
        StackTraceElement[] calls = Thread.currentThread().getStackTrace();
        for (int index = 0; index < calls.length; index++) {
            if (calls[index].getClassName().startsWith("org.apache.spark.sql.classic.Catalog")) {
                return true;
            }
        }
        return false;
    }

    /** An INSERT that says which rows it replaces becomes one that Spark can analyze; Python knows the rest. */
    private LogicalPlan understood(LogicalPlan plan) {
        if (plan instanceof ExplainCommand) {
            ExplainCommand explained = (ExplainCommand) plan;
            LogicalPlan inner = understood(explained.logicalPlan());
            return inner == explained.logicalPlan() ? plan : new ExplainCommand(inner, explained.mode());
        }
        LogicalPlan statement = plan instanceof UnresolvedWith ? (LogicalPlan) ((UnresolvedWith) plan).child() : plan;
        if (!(statement instanceof InsertIntoStatement) || !replaces((Product) statement)) {
            return plan;
        }
        Object[] subject = new Object[] {plan, session};
        Driver.ask(Driver.request("replace_rows"), subject);
        return (LogicalPlan) subject[0];
    }

    /** Whether it is by what new rows match; by a plain condition Spark can do it. By name: not every release has these. */
    private static boolean replaces(Product insert) {
        for (int index = 0; index < insert.productArity(); index++) {
            if (insert.productElementName(index).equals("replaceCriteriaOpt")) {
                Option criteria = (Option) insert.productElement(index);
                return criteria.isDefined() && !criteria.get().getClass().getSimpleName().equals("InsertReplaceWhere");
            }
        }
        return false;
    }
}
