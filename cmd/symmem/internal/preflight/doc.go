// Package preflight checks, before a job starts, that its ranks can work together: that all ranks
// start, that collectives on each path give correct sums at the expected speed, and that each pair
// of ranks can exchange messages. It names the node, rank or link that is at fault.
//
// Each rank produces a RankResult, and Judge converts these results to a Report. Judge is a pure
// function, so that tests can examine jobs on many machines.
package preflight
