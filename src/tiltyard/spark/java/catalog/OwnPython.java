package tiltyard;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;

import org.apache.spark.SparkConf;
import org.apache.spark.api.python.Py4JServer;
import org.apache.spark.api.python.PythonUtils;
import org.apache.spark.sql.classic.SparkSession;

import scala.Option;
import scala.collection.immutable.Seq;

/**
 * A Python process that answers where the driver is none that called enable: an application with nothing but settings, or a server.
 * It ends with this JVM: it reads its input, which ends then.
 */
final class OwnPython {

    private static final String MODULE = "tiltyard.spark.sql_catalog.catalog_process";
    private static Process process;

    private OwnPython() {
    }

    /** What a session of ours plans and parses with, which nobody else puts into it. */
    static void prepare(SparkSession session) {
        try {
            LakeParser.install(session);
        } catch (ReflectiveOperationException failure) {
            throw new IllegalStateException("This Spark keeps its parser elsewhere.", failure);
        }
        LakeChanges.install(session);
        Seq there = session.experimental().extraStrategies();
        List kept = new ArrayList();
        for (int index = 0; index < there.size(); index++) {
            if (there.apply(index) instanceof LakeStrategy) {
                return;
            }
            kept.add(there.apply(index));
        }
        kept.add(new LakeStrategy());
        session.experimental().extraStrategies_$eq(scala.jdk.javaapi.CollectionConverters.asScala(kept).toSeq());
    }

    static synchronized void start() {
        if (Driver.isThere()) {
            return;
        }
        Option session = SparkSession.getActiveSession();
        if (!session.isDefined()) {
            session = SparkSession.getDefaultSession();
        }
        if (!session.isDefined() || (process != null && process.isAlive())) {
            throw missing("There is no session.");
        }
        SparkConf conf = ((SparkSession) session.get()).sparkContext().conf();
        Py4JServer server = startAside(conf);
        String said = null;
        try {
            ProcessBuilder builder = new ProcessBuilder(new String[] {python(conf), "-m", MODULE});
            builder.environment().put("PYSPARK_GATEWAY_PORT", Integer.toString(server.getListeningPort()));
            builder.environment().put("PYSPARK_GATEWAY_SECRET", server.secret());
            String known = System.getenv("PYTHONPATH");
            String spark = PythonUtils.sparkPythonPath();
            builder.environment().put("PYTHONPATH", known == null ? spark : known + java.io.File.pathSeparator + spark);
            builder.redirectError(ProcessBuilder.Redirect.INHERIT);
            process = builder.start();
            said = new BufferedReader(new InputStreamReader(process.getInputStream(), StandardCharsets.UTF_8)).readLine();
        } catch (IOException failure) {
            said = failure.getMessage();
        }
        if (!Driver.isThere()) {
            server.shutdown();
            throw missing(said == null ? "The process ended at once: is tiltyard installed for " + python(conf) + "?" : said);
        }
    }

    /** Threads of the server, which begin when it is made, are the children of one that does not keep a JVM from ending. */
    private static Py4JServer startAside(SparkConf conf) {
        Start start = new Start(conf);
        Thread thread = new Thread(start, "tiltyard-gateway");
        thread.setDaemon(true);
        thread.start();
        try {
            thread.join();
        } catch (InterruptedException failure) {
            Thread.currentThread().interrupt();
        }
        if (start.server == null) {
            throw missing("No port could be opened for one.");
        }
        return start.server;
    }

    static final class Start implements Runnable {
        private final SparkConf conf;
        volatile Py4JServer server;

        Start(SparkConf conf) {
            this.conf = conf;
        }

        public void run() {
            Py4JServer made = new Py4JServer(conf);
            made.start();
            server = made;
        }
    }

    private static IllegalStateException missing(String why) {
        return new IllegalStateException(
            "This session has a Tiltyard catalog, but no Python process serves it. " + why + " Call ty.spark.enable(spark), or see to it that"
                + " spark.pyspark.driver.python names a Python with tiltyard.");
    }

    private static String python(SparkConf conf) {
        String[] settings = new String[] {"spark.pyspark.driver.python", "spark.pyspark.python"};
        for (int index = 0; index < settings.length; index++) {
            if (conf.contains(settings[index])) {
                return conf.get(settings[index]);
            }
        }
        String[] variables = new String[] {"PYSPARK_DRIVER_PYTHON", "PYSPARK_PYTHON"};
        for (int index = 0; index < variables.length; index++) {
            String value = System.getenv(variables[index]);
            if (value != null && value.length() > 0) {
                return value;
            }
        }
        return "python3";
    }
}
