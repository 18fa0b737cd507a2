select id, cast(id % 3 as int) as customer, id * 2.5 as amount from range(10)
