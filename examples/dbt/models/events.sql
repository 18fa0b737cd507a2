{{ config(materialized='incremental', incremental_strategy='append') }}
select id as event from range(3)
