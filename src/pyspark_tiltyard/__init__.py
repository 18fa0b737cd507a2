"""Found by Spark by its name, so that ``spark.read.format("tiltyard")`` is known once Tiltyard is installed. Kept light to import."""

from tiltyard.spark.source import TiltyardSource as DefaultSource

__all__ = ["DefaultSource"]
