// Package preflight checks, before a job starts, that all ranks start, that collectives give
// correct sums at the expected speed, and that each pair of ranks can exchange messages. The checks
// name the node, rank or link that is at fault. Each rank produces a RankResult, and Judge converts
// the results to a Report.
package preflight
