package tiltyard;

import org.apache.arrow.vector.BaseFixedWidthVector;
import org.apache.arrow.vector.BigIntVector;
import org.apache.arrow.vector.BitVector;
import org.apache.arrow.vector.DateDayVector;
import org.apache.arrow.vector.DecimalVector;
import org.apache.arrow.vector.Float4Vector;
import org.apache.arrow.vector.Float8Vector;
import org.apache.arrow.vector.IntVector;
import org.apache.arrow.vector.SmallIntVector;
import org.apache.arrow.vector.TimeStampMicroTZVector;
import org.apache.arrow.vector.TimeStampMicroVector;
import org.apache.arrow.vector.TinyIntVector;
import org.apache.arrow.vector.ValueVector;
import org.apache.arrow.vector.VarCharVector;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.sql.vectorized.ArrowColumnVector;
import org.apache.spark.unsafe.Platform;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * A column of one Arrow batch, read at its addresses.
 *
 * Spark's own class for such columns asks an accessor of each value, and makes a BigDecimal of each decimal. Here generated code
 * comes to the bytes in one step. Which layout the bytes have is told by the class of the vector, never by what somebody says it is; the
 * addresses are good until the next batch is loaded, which is how long Spark uses a batch. Decimals of more than 18 digits, binary and all
 * that is nested are left to Spark's class.
 */
final class FlatColumn extends ArrowColumnVector {

    private static final int DECIMAL_BYTES = 16;

    private final long values;
    private final long offsets;
    private final long validity;
    private final boolean nulls;

    private FlatColumn(ValueVector vector, long values, long offsets) {
        super(vector);
        int missing = vector.getNullCount();
        this.nulls = missing > 0;
        this.validity = nulls ? vector.getValidityBuffer().memoryAddress() : 0;
        this.values = values;
        this.offsets = offsets;
    }

    static ArrowColumnVector of(ValueVector vector) {
        if (vector instanceof VarCharVector) {
            VarCharVector text = (VarCharVector) vector;
            if (text.getValueCount() > 0) {
                return new FlatColumn(vector, text.getDataBuffer().memoryAddress(), text.getOffsetBuffer().memoryAddress());
            }
        } else if (isFlat(vector)) {
            return new FlatColumn(vector, ((BaseFixedWidthVector) vector).getDataBuffer().memoryAddress(), 0);
        }
        return new Kept(vector);
    }

    private static boolean isFlat(ValueVector vector) {
        return vector instanceof BigIntVector || vector instanceof IntVector || vector instanceof Float8Vector
            || vector instanceof DateDayVector || vector instanceof TimeStampMicroTZVector || vector instanceof TimeStampMicroVector
            || vector instanceof Float4Vector || vector instanceof SmallIntVector || vector instanceof TinyIntVector
            || vector instanceof BitVector
            || vector instanceof DecimalVector && ((DecimalVector) vector).getPrecision() <= Decimal.MAX_LONG_DIGITS();
    }

    public boolean hasNull() {
        return nulls;
    }

    public boolean isNullAt(int row) {
        return nulls && (Platform.getByte(null, validity + (row >> 3)) >> (row & 7) & 1) == 0;
    }

    public boolean getBoolean(int row) {
        return (Platform.getByte(null, values + (row >> 3)) >> (row & 7) & 1) != 0;
    }

    public byte getByte(int row) {
        return Platform.getByte(null, values + row);
    }

    public short getShort(int row) {
        return Platform.getShort(null, values + 2L * row);
    }

    public int getInt(int row) {
        return Platform.getInt(null, values + 4L * row);
    }

    public long getLong(int row) {
        return Platform.getLong(null, values + 8L * row);
    }

    public float getFloat(int row) {
        return Platform.getFloat(null, values + 4L * row);
    }

    public double getDouble(int row) {
        return Platform.getDouble(null, values + 8L * row);
    }

    public Decimal getDecimal(int row, int precision, int scale) {
        return isNullAt(row) ? null : Decimal.createUnsafe(Platform.getLong(null, values + (long) DECIMAL_BYTES * row), precision, scale);
    }

    public UTF8String getUTF8String(int row) {
        if (isNullAt(row)) {
            return null;
        }
        int from = Platform.getInt(null, offsets + 4L * row);
        return UTF8String.fromAddress(null, values + from, Platform.getInt(null, offsets + 4L * (row + 1L)) - from);
    }

    /** The vectors belong to the stream that they came by, and are loaded again. */
    public void closeIfFreeable() {
    }

    static final class Kept extends ArrowColumnVector {
        Kept(ValueVector vector) {
            super(vector);
        }

        public void closeIfFreeable() {
        }
    }
}
