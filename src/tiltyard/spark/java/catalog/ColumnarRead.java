package tiltyard;

import java.io.Serializable;
import java.lang.reflect.Constructor;
import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.util.function.Function;

import org.apache.spark.PartitionEvaluator;
import org.apache.spark.TaskContext;
import org.apache.spark.api.python.BasePythonRunner;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.execution.datasources.v2.python.PythonCustomMetric$;
import org.apache.spark.sql.execution.datasources.v2.python.PythonInputPartition;
import org.apache.spark.sql.execution.datasources.v2.python.PythonPartitionReaderFactory;
import org.apache.spark.sql.execution.datasources.v2.python.UserDefinedPythonDataSource;
import org.apache.spark.sql.execution.datasources.v2.python.UserDefinedPythonDataSource$;
import org.apache.spark.sql.execution.python.MapInBatchEvaluatorFactory;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ArrowColumnVector;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import org.apache.spark.util.AccumulatorV2;

import scala.Tuple2;
import scala.collection.Iterator;
import scala.collection.immutable.Map;
import scala.collection.immutable.Map$;

/**
 * Hands over what Python workers read as the columns that they are.
 *
 * Spark's own reader of Python sources takes the batches that arrive apart into rows; generated code can read columns itself. The worker, what
 * it is asked and how it is reached are Spark's: only what becomes of its batches differs. Parts of Spark that nobody promised are used, so
 * {@link #isKnown} looks for all of them on the driver first.
 */
public final class ColumnarRead implements Function, Serializable {

    private static final String RUNNER = MapInBatchEvaluatorFactory.class.getName() + "$MapInBatchEvaluator$$anon$1";

    public ColumnarRead() {
    }

    /** Whether this Spark has inside what is used here. */
    public boolean isKnown() {
        try {
            Method make = made();
            return (make.getParameterCount() == 6 || make.getParameterCount() == 7) && runner() != null
                && held("source") != null && held("pickledReadFunc") != null && held("outputSchema") != null && held("jobArtifactUUID") != null;
        } catch (ReflectiveOperationException failure) {
            return false;
        }
    }

    /** A factory of readers of columns in place of Spark's factory of readers of rows. */
    public Object apply(Object factory) {
        return new Factory((PythonPartitionReaderFactory) factory);
    }

    private static Method made() throws ReflectiveOperationException {
        Method[] all = UserDefinedPythonDataSource.class.getMethods();
        for (int index = 0; index < all.length; index++) {
            if (all[index].getName().equals("createMapInBatchEvaluatorFactory")) {
                return all[index];
            }
        }
        throw new NoSuchMethodException("createMapInBatchEvaluatorFactory");
    }

    private static Constructor runner() throws ReflectiveOperationException {
        Class found = Class.forName(RUNNER, true, MapInBatchEvaluatorFactory.class.getClassLoader());
        Constructor made = found.getDeclaredConstructors()[0];
        if (made.getParameterCount() != 2 || !BasePythonRunner.class.isAssignableFrom(found)) {
            throw new NoSuchMethodException(RUNNER);
        }
        made.setAccessible(true);
        return made;
    }

    private static Field held(String name) throws ReflectiveOperationException {
        Field[] all = PythonPartitionReaderFactory.class.getDeclaredFields();
        for (int index = 0; index < all.length; index++) {
            if (all[index].getName().equals(name) || all[index].getName().endsWith("$$" + name)) {
                all[index].setAccessible(true);
                return all[index];
            }
        }
        throw new NoSuchFieldException(name);
    }

    static final class Factory implements PartitionReaderFactory {
        private final PythonPartitionReaderFactory rows;

        Factory(PythonPartitionReaderFactory rows) {
            this.rows = rows;
        }

        public boolean supportColumnarReads(InputPartition partition) {
            return true;
        }

        public PartitionReader createReader(InputPartition partition) {
            return rows.createReader(partition);
        }

        public PartitionReader createColumnarReader(InputPartition partition) {
            try {
                return new Reader(rows, (PythonInputPartition) partition);
            } catch (ReflectiveOperationException failure) {
                throw new IllegalStateException("This executor has another Spark inside than the driver.", failure);
            }
        }
    }

    static final class Reader implements PartitionReader {
        private final UserDefinedPythonDataSource source;
        private final StructType schema;
        private final Map metrics = PythonCustomMetric$.MODULE$.pythonMetrics();
        private final Iterator batches;
        private ColumnarBatch now;

        Reader(PythonPartitionReaderFactory rows, PythonInputPartition partition) throws ReflectiveOperationException {
            source = (UserDefinedPythonDataSource) held("source").get(rows);
            schema = (StructType) held("outputSchema").get(rows);
            Method make = made();
            Object[] given = new Object[make.getParameterCount()];
            given[0] = held("pickledReadFunc").get(rows);
            given[1] = "read_from_data_source";
            given[2] = UserDefinedPythonDataSource$.MODULE$.readInputSchema();
            given[3] = schema;
            given[4] = metrics;
            given[5] = held("jobArtifactUUID").get(rows);
            if (given.length > 6) {
                given[6] = held("sessionUUID").get(rows);
            }
            PartitionEvaluator evaluator = ((MapInBatchEvaluatorFactory) make.invoke(source, given)).createEvaluator();
            int[][] columns = new int[][] {{0}};
            BasePythonRunner worker = (BasePythonRunner) runner().newInstance(new Object[] {evaluator, columns});
            GenericInternalRow told = new GenericInternalRow(new Object[] {partition.pickedPartition()});
            GenericInternalRow row = new GenericInternalRow(new Object[] {told});
            Iterator input = scala.collection.Iterator$.MODULE$.single(scala.collection.Iterator$.MODULE$.single(row));
            TaskContext task = TaskContext.get();
            batches = worker.compute(input, task.partitionId(), task);
        }

        public boolean next() {
            if (!batches.hasNext()) {
                return false;
            }
            ColumnarBatch whole = (ColumnarBatch) batches.next();
            ArrowColumnVector struct = (ArrowColumnVector) whole.column(0);
            ColumnVector[] columns = new ColumnVector[schema.length()];
            for (int index = 0; index < columns.length; index++) {
                columns[index] = FlatColumn.of(struct.getChild(index).getValueVector());
            }
            now = new ColumnarBatch(columns);
            now.setNumRows(whole.numRows());
            return true;
        }

        public Object get() {
            return now;
        }

        public CustomTaskMetric[] currentMetricsValues() {
            java.util.Map values = new java.util.HashMap();
            for (Iterator all = metrics.iterator(); all.hasNext();) {
                Tuple2 one = (Tuple2) all.next();
                values.put(one._1(), ((AccumulatorV2) one._2()).value());
            }
            return source.createPythonTaskMetrics((Map) Map$.MODULE$.from(scala.jdk.javaapi.CollectionConverters.asScala(values)));
        }

        public void close() {
        }
    }
}
