// Package preflight checks, before a job starts, that its ranks can work together: that all ranks
// start, that collectives on each path give right sums at the expected speed, and that each pair of
// ranks can exchange messages. It names the node, the rank or the link at fault.
//
// Each rank makes an Account. Judge turns the accounts into a Report; it is a pure function, so
// tests can examine jobs on many machines.
package preflight
