package tiltyard;

import java.lang.reflect.Field;
import java.lang.reflect.InvocationHandler;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.util.regex.Pattern;

import com.fasterxml.jackson.databind.JsonNode;

import org.apache.spark.sql.catalyst.parser.ParserInterface;
import org.apache.spark.sql.classic.SparkSession;

/** Spark's parser, with a few statements more: Python reads them, and says what they are in Spark's own grammar. */
public final class LakeParser implements InvocationHandler {

    private static final Pattern OURS =
        Pattern.compile("\\s*(OPTIMIZE|VACUUM|RESTORE|DESC(RIBE)?\\s+HISTORY)\\b.*", Pattern.CASE_INSENSITIVE | Pattern.DOTALL);

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
        try {
            return method.invoke(parser, given);
        } catch (InvocationTargetException failure) {
            throw failure.getCause();
        }
    }
}
