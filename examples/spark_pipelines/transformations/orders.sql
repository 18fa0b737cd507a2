CREATE MATERIALIZED VIEW orders AS
SELECT id, id % 3 AS customer, id * 1.5D AS amount FROM range(10);

CREATE MATERIALIZED VIEW totals AS
SELECT customer, count(*) AS orders, sum(amount) AS amount FROM orders GROUP BY customer;

CREATE STREAMING TABLE refunds AS
SELECT id, customer FROM STREAM(events) WHERE kind = 'refund';
