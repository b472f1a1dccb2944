// Package preflight checks, before a job starts, that all ranks start, that collectives give
// correct sums at the expected speed, and that each pair of ranks can exchange messages. The checks
// name the node, rank or link that is at fault.
//
// Collectives are checked on each path, that is, each way in which symmem can execute them. Each
// rank produces a RankResult, and Judge converts these results to a Report. Judge is a pure
// function, so that tests can examine jobs on many machines.
package preflight
