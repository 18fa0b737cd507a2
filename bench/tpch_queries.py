"""The 22 questions of TPC-H in our own words: what the standard asks with the parameters it validates by. ``@`` stands before tables."""

from __future__ import annotations

from typing import Final

QUERIES: Final[dict[int, str]] = {
    1: """
        SELECT l_returnflag, l_linestatus, sum(l_quantity) AS quantity, sum(l_extendedprice) AS price,
               sum(l_extendedprice * (1 - l_discount)) AS discounted, sum(l_extendedprice * (1 - l_discount) * (1 + l_tax)) AS charged,
               avg(l_quantity) AS mean_quantity, avg(l_extendedprice) AS mean_price, avg(l_discount) AS mean_discount, count(*) AS lines
        FROM @lineitem WHERE l_shipdate <= DATE '1998-12-01' - INTERVAL 90 DAYS
        GROUP BY l_returnflag, l_linestatus ORDER BY l_returnflag, l_linestatus""",
    2: """
        SELECT s_acctbal, s_name, n_name, p_partkey, p_mfgr, s_address, s_phone, s_comment
        FROM @part JOIN @partsupp ON p_partkey = ps_partkey JOIN @supplier ON s_suppkey = ps_suppkey
             JOIN @nation ON s_nationkey = n_nationkey JOIN @region ON n_regionkey = r_regionkey
        WHERE p_size = 15 AND p_type LIKE '%BRASS' AND r_name = 'EUROPE'
          AND ps_supplycost = (
              SELECT min(ps_supplycost) FROM @partsupp, @supplier, @nation, @region
              WHERE p_partkey = ps_partkey AND s_suppkey = ps_suppkey AND s_nationkey = n_nationkey
                AND n_regionkey = r_regionkey AND r_name = 'EUROPE')
        ORDER BY s_acctbal DESC, n_name, s_name, p_partkey LIMIT 100""",
    3: """
        SELECT l_orderkey, sum(l_extendedprice * (1 - l_discount)) AS revenue, o_orderdate, o_shippriority
        FROM @customer JOIN @orders ON c_custkey = o_custkey JOIN @lineitem ON l_orderkey = o_orderkey
        WHERE c_mktsegment = 'BUILDING' AND o_orderdate < DATE '1995-03-15' AND l_shipdate > DATE '1995-03-15'
        GROUP BY l_orderkey, o_orderdate, o_shippriority ORDER BY revenue DESC, o_orderdate, l_orderkey LIMIT 10""",
    4: """
        SELECT o_orderpriority, count(*) AS orders FROM @orders
        WHERE o_orderdate >= DATE '1993-07-01' AND o_orderdate < DATE '1993-10-01'
          AND EXISTS (SELECT 1 FROM @lineitem WHERE l_orderkey = o_orderkey AND l_commitdate < l_receiptdate)
        GROUP BY o_orderpriority ORDER BY o_orderpriority""",
    5: """
        SELECT n_name, sum(l_extendedprice * (1 - l_discount)) AS revenue
        FROM @customer JOIN @orders ON c_custkey = o_custkey JOIN @lineitem ON l_orderkey = o_orderkey
             JOIN @supplier ON l_suppkey = s_suppkey AND c_nationkey = s_nationkey
             JOIN @nation ON s_nationkey = n_nationkey JOIN @region ON n_regionkey = r_regionkey
        WHERE r_name = 'ASIA' AND o_orderdate >= DATE '1994-01-01' AND o_orderdate < DATE '1995-01-01'
        GROUP BY n_name ORDER BY revenue DESC""",
    6: """
        SELECT sum(l_extendedprice * l_discount) AS revenue FROM @lineitem
        WHERE l_shipdate >= DATE '1994-01-01' AND l_shipdate < DATE '1995-01-01'
          AND l_discount BETWEEN 0.05 AND 0.07 AND l_quantity < 24""",
    7: """
        SELECT seller, buyer, shipped, sum(volume) AS revenue
        FROM (SELECT one.n_name AS seller, two.n_name AS buyer, year(l_shipdate) AS shipped, l_extendedprice * (1 - l_discount) AS volume
              FROM @supplier JOIN @lineitem ON s_suppkey = l_suppkey JOIN @orders ON o_orderkey = l_orderkey
                   JOIN @customer ON c_custkey = o_custkey JOIN @nation one ON s_nationkey = one.n_nationkey
                   JOIN @nation two ON c_nationkey = two.n_nationkey
              WHERE (one.n_name = 'FRANCE' AND two.n_name = 'GERMANY' OR one.n_name = 'GERMANY' AND two.n_name = 'FRANCE')
                AND l_shipdate BETWEEN DATE '1995-01-01' AND DATE '1996-12-31')
        GROUP BY seller, buyer, shipped ORDER BY seller, buyer, shipped""",
    8: """
        SELECT ordered, sum(CASE WHEN nation = 'BRAZIL' THEN volume ELSE 0 END) / sum(volume) AS share
        FROM (SELECT year(o_orderdate) AS ordered, l_extendedprice * (1 - l_discount) AS volume, two.n_name AS nation
              FROM @part JOIN @lineitem ON p_partkey = l_partkey JOIN @supplier ON s_suppkey = l_suppkey
                   JOIN @orders ON l_orderkey = o_orderkey JOIN @customer ON o_custkey = c_custkey
                   JOIN @nation one ON c_nationkey = one.n_nationkey JOIN @region ON one.n_regionkey = r_regionkey
                   JOIN @nation two ON s_nationkey = two.n_nationkey
              WHERE r_name = 'AMERICA' AND o_orderdate BETWEEN DATE '1995-01-01' AND DATE '1996-12-31'
                AND p_type = 'ECONOMY ANODIZED STEEL')
        GROUP BY ordered ORDER BY ordered""",
    9: """
        SELECT nation, ordered, sum(amount) AS profit
        FROM (SELECT n_name AS nation, year(o_orderdate) AS ordered,
                     l_extendedprice * (1 - l_discount) - ps_supplycost * l_quantity AS amount
              FROM @part JOIN @lineitem ON p_partkey = l_partkey JOIN @supplier ON s_suppkey = l_suppkey
                   JOIN @partsupp ON ps_suppkey = l_suppkey AND ps_partkey = l_partkey
                   JOIN @orders ON o_orderkey = l_orderkey JOIN @nation ON s_nationkey = n_nationkey
              WHERE p_name LIKE '%green%')
        GROUP BY nation, ordered ORDER BY nation, ordered DESC""",
    10: """
        SELECT c_custkey, c_name, sum(l_extendedprice * (1 - l_discount)) AS revenue, c_acctbal, n_name, c_address, c_phone, c_comment
        FROM @customer JOIN @orders ON c_custkey = o_custkey JOIN @lineitem ON l_orderkey = o_orderkey
             JOIN @nation ON c_nationkey = n_nationkey
        WHERE o_orderdate >= DATE '1993-10-01' AND o_orderdate < DATE '1994-01-01' AND l_returnflag = 'R'
        GROUP BY c_custkey, c_name, c_acctbal, c_phone, n_name, c_address, c_comment
        ORDER BY revenue DESC, c_custkey LIMIT 20""",
    11: """
        SELECT ps_partkey, sum(ps_supplycost * ps_availqty) AS worth
        FROM @partsupp JOIN @supplier ON ps_suppkey = s_suppkey JOIN @nation ON s_nationkey = n_nationkey
        WHERE n_name = 'GERMANY' GROUP BY ps_partkey
        HAVING sum(ps_supplycost * ps_availqty) > (
            SELECT sum(ps_supplycost * ps_availqty) * 0.0001
            FROM @partsupp JOIN @supplier ON ps_suppkey = s_suppkey JOIN @nation ON s_nationkey = n_nationkey
            WHERE n_name = 'GERMANY')
        ORDER BY worth DESC, ps_partkey""",
    12: """
        SELECT l_shipmode, sum(CASE WHEN o_orderpriority IN ('1-URGENT', '2-HIGH') THEN 1 ELSE 0 END) AS high,
               sum(CASE WHEN o_orderpriority NOT IN ('1-URGENT', '2-HIGH') THEN 1 ELSE 0 END) AS low
        FROM @orders JOIN @lineitem ON o_orderkey = l_orderkey
        WHERE l_shipmode IN ('MAIL', 'SHIP') AND l_commitdate < l_receiptdate AND l_shipdate < l_commitdate
          AND l_receiptdate >= DATE '1994-01-01' AND l_receiptdate < DATE '1995-01-01'
        GROUP BY l_shipmode ORDER BY l_shipmode""",
    13: """
        SELECT orders, count(*) AS customers
        FROM (SELECT c_custkey, count(o_orderkey) AS orders
              FROM @customer LEFT JOIN @orders ON c_custkey = o_custkey AND o_comment NOT LIKE '%special%requests%'
              GROUP BY c_custkey)
        GROUP BY orders ORDER BY customers DESC, orders DESC""",
    14: """
        SELECT 100.00 * sum(CASE WHEN p_type LIKE 'PROMO%' THEN l_extendedprice * (1 - l_discount) ELSE 0 END)
               / sum(l_extendedprice * (1 - l_discount)) AS promoted
        FROM @lineitem JOIN @part ON l_partkey = p_partkey
        WHERE l_shipdate >= DATE '1995-09-01' AND l_shipdate < DATE '1995-10-01'""",
    15: """
        WITH earned AS (
            SELECT l_suppkey AS supplier, sum(l_extendedprice * (1 - l_discount)) AS total FROM @lineitem
            WHERE l_shipdate >= DATE '1996-01-01' AND l_shipdate < DATE '1996-04-01' GROUP BY l_suppkey)
        SELECT s_suppkey, s_name, s_address, s_phone, total FROM @supplier JOIN earned ON s_suppkey = supplier
        WHERE total = (SELECT max(total) FROM earned) ORDER BY s_suppkey""",
    16: """
        SELECT p_brand, p_type, p_size, count(DISTINCT ps_suppkey) AS suppliers
        FROM @partsupp JOIN @part ON p_partkey = ps_partkey
        WHERE p_brand <> 'Brand#45' AND p_type NOT LIKE 'MEDIUM POLISHED%' AND p_size IN (49, 14, 23, 45, 19, 3, 36, 9)
          AND ps_suppkey NOT IN (SELECT s_suppkey FROM @supplier WHERE s_comment LIKE '%Customer%Complaints%')
        GROUP BY p_brand, p_type, p_size ORDER BY suppliers DESC, p_brand, p_type, p_size""",
    17: """
        SELECT sum(l_extendedprice) / 7.0 AS yearly FROM @lineitem JOIN @part ON p_partkey = l_partkey
        WHERE p_brand = 'Brand#23' AND p_container = 'MED BOX'
          AND l_quantity < (SELECT 0.2 * avg(l_quantity) FROM @lineitem WHERE l_partkey = p_partkey)""",
    18: """
        SELECT c_name, c_custkey, o_orderkey, o_orderdate, o_totalprice, sum(l_quantity) AS quantity
        FROM @customer JOIN @orders ON c_custkey = o_custkey JOIN @lineitem ON o_orderkey = l_orderkey
        WHERE o_orderkey IN (SELECT l_orderkey FROM @lineitem GROUP BY l_orderkey HAVING sum(l_quantity) > 300)
        GROUP BY c_name, c_custkey, o_orderkey, o_orderdate, o_totalprice
        ORDER BY o_totalprice DESC, o_orderdate, o_orderkey LIMIT 100""",
    19: """
        SELECT sum(l_extendedprice * (1 - l_discount)) AS revenue FROM @lineitem JOIN @part ON p_partkey = l_partkey
        WHERE l_shipmode IN ('AIR', 'AIR REG') AND l_shipinstruct = 'DELIVER IN PERSON'
          AND (p_brand = 'Brand#12' AND p_container IN ('SM CASE', 'SM BOX', 'SM PACK', 'SM PKG')
                 AND l_quantity BETWEEN 1 AND 11 AND p_size BETWEEN 1 AND 5
               OR p_brand = 'Brand#23' AND p_container IN ('MED BAG', 'MED BOX', 'MED PKG', 'MED PACK')
                 AND l_quantity BETWEEN 10 AND 20 AND p_size BETWEEN 1 AND 10
               OR p_brand = 'Brand#34' AND p_container IN ('LG CASE', 'LG BOX', 'LG PACK', 'LG PKG')
                 AND l_quantity BETWEEN 20 AND 30 AND p_size BETWEEN 1 AND 15)""",
    20: """
        SELECT s_name, s_address FROM @supplier JOIN @nation ON s_nationkey = n_nationkey
        WHERE n_name = 'CANADA' AND s_suppkey IN (
            SELECT ps_suppkey FROM @partsupp
            WHERE ps_partkey IN (SELECT p_partkey FROM @part WHERE p_name LIKE 'forest%')
              AND ps_availqty > (SELECT 0.5 * sum(l_quantity) FROM @lineitem
                                 WHERE l_partkey = ps_partkey AND l_suppkey = ps_suppkey
                                   AND l_shipdate >= DATE '1994-01-01' AND l_shipdate < DATE '1995-01-01'))
        ORDER BY s_name""",
    21: """
        SELECT s_name, count(*) AS waited
        FROM @supplier JOIN @lineitem late ON s_suppkey = late.l_suppkey JOIN @orders ON o_orderkey = late.l_orderkey
             JOIN @nation ON s_nationkey = n_nationkey
        WHERE o_orderstatus = 'F' AND late.l_receiptdate > late.l_commitdate AND n_name = 'SAUDI ARABIA'
          AND EXISTS (SELECT 1 FROM @lineitem other WHERE other.l_orderkey = late.l_orderkey AND other.l_suppkey <> late.l_suppkey)
          AND NOT EXISTS (SELECT 1 FROM @lineitem other WHERE other.l_orderkey = late.l_orderkey
                          AND other.l_suppkey <> late.l_suppkey AND other.l_receiptdate > other.l_commitdate)
        GROUP BY s_name ORDER BY waited DESC, s_name LIMIT 100""",
    22: """
        SELECT code, count(*) AS customers, sum(c_acctbal) AS balance
        FROM (SELECT substring(c_phone, 1, 2) AS code, c_acctbal FROM @customer
              WHERE substring(c_phone, 1, 2) IN ('13', '31', '23', '29', '30', '18', '17')
                AND c_acctbal > (SELECT avg(c_acctbal) FROM @customer
                                 WHERE c_acctbal > 0.00 AND substring(c_phone, 1, 2) IN ('13', '31', '23', '29', '30', '18', '17'))
                AND NOT EXISTS (SELECT 1 FROM @orders WHERE o_custkey = c_custkey))
        GROUP BY code ORDER BY code""",
}
