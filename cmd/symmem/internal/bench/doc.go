// Package bench measures collectives, and the times for tuning tables, which choose the path (the
// implementation) of each collective.
//
// The speed of a virtual machine can change by a factor of two to four within seconds. Therefore,
// the package alternates between batches of all variants in one process, and compares only results
// of one run. Reports contain the round-trip time between two processors before and after the
// measurement ([Probe]). Two runs are comparable only if these times agree.
package bench
