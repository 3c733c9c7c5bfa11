-- name: put
SELECT {schema}.put(%s)

-- name: claim
SELECT {schema}.claim(%s)

-- name: extend
SELECT {schema}.extend(%s)

-- name: settle
SELECT {schema}.settle(%s)

-- name: held
SELECT {schema}.held(%s)

-- name: announce
SELECT {schema}.announce(%s)

-- name: due
SELECT {schema}.due(%s)

-- name: upkeep
SELECT {schema}.upkeep(%s)

-- name: read_entries
SELECT {schema}.read_entries(%s)

-- name: write_entries
SELECT {schema}.write_entries(%s)

-- name: act
SELECT {schema}.act(%s)

-- name: noted
SELECT {schema}.noted(%s)
