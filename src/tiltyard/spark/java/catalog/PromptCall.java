package tiltyard;

import java.net.SocketException;
import java.util.function.Function;

import py4j.ClientServerConnection;
import py4j.Py4JPythonClientPerThread;

/**
 * A function of the Python driver, called without waiting.
 *
 * py4j writes a request in parts of 8 kB. The second part waits until Python's side acknowledges the first, and that one, which has nothing
 * to say before it has all, waits 40 ms: keys of a join took that long, however few microseconds they travel.
 */
public final class PromptCall implements Function {

    private static volatile Object client;

    private final Function python;

    /** {@code given} is py4j's way to Python, from which the connection of each thread is known. */
    public PromptCall(Object python, Object given) {
        this.python = (Function) python;
        client = given;
    }

    public static void through(Object given) {
        client = given;
    }

    /** Has the connection of this thread, if it has one, send at once. */
    static void prepare() {
        if (!(client instanceof Py4JPythonClientPerThread)) {
            return;
        }
        ClientServerConnection known = ((Py4JPythonClientPerThread) client).getPerThreadConnection();
        if (known == null) {
            return;
        }
        try {
            known.getSocket().setTcpNoDelay(true);
        } catch (SocketException failure) {
            return; // closed; whoever uses it next hears of it
        }
    }

    public Object apply(Object request) {
        prepare();
        Object answer = python.apply(request);
        prepare(); // the first call of a thread makes its connection
        return answer;
    }
}
