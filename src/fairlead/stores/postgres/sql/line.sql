-- name: put
SELECT {schema}.put(%s)

-- name: claim
SELECT * FROM {schema}.claim(%s)

-- name: extend
SELECT id, asked, renewed FROM {schema}.extend(%s)

-- name: settle
SELECT {schema}.settle(%s)

-- name: held
SELECT * FROM {schema}.held(%s)

-- name: announce
SELECT {schema}.announce(%s)

-- name: due
SELECT next_at, at FROM {schema}.due(%s)

-- name: upkeep
SELECT {schema}.upkeep(%s)

-- name: act
SELECT {schema}.act(%s)

-- name: noted
SELECT {schema}.noted(%s)
